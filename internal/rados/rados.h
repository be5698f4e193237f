// The calls of librados that this package needs.

#ifndef NVMF_RADOS_H
#define NVMF_RADOS_H

#include <stddef.h>
#include <stdint.h>

// cluster_load loads the library. It returns NULL, or the text of the error.
const char *cluster_load(void);

// A cluster is a connection to a cluster. cluster_open takes up to 10 s.
int cluster_open(const char *user, const char *conf, const char *keyring, void **cluster);
void cluster_close(void *cluster);
int cluster_fsid(void *cluster, char *text, size_t n);
// cluster_wait waits until the connection has the newest map of the OSDs.
int cluster_wait(void *cluster);
// cluster_free frees text of the functions below.
void cluster_free(char *text);
int cluster_addrs(void *cluster, char **text);
// cluster_command sends a command to the monitors. out is their answer, and status a text about it.
int cluster_command(void *cluster, const char *command, char **out, size_t *out_n, char **status,
	size_t *status_n);

// A pool is the access to the objects of a pool and a namespace in it.
int pool_open(void *cluster, const char *name, const char *space, void **pool);
void pool_close(void *pool);

// object_read returns the number of bytes, and the version of the object.
int object_read(void *pool, const char *object, char *buf, size_t n, uint64_t *version);
// object_write replaces an object that has this version, or creates it if that is 0.
int object_write(void *pool, const char *object, const char *buf, size_t n, uint64_t *version);

// An object has a lock with an owner and a time at which it expires.
int object_lock(void *pool, const char *object, const char *owner, uint64_t usec, int must_renew);
int object_unlock(void *pool, const char *object, const char *owner);
// object_locker returns the number of owners, and the name of the client of the owner.
int object_locker(void *pool, const char *object, char *client, size_t client_n, char *owner,
	size_t owner_n);
int object_break(void *pool, const char *object, const char *client, const char *owner);

// An object has another lock, with a tag and any number of owners, which does not expire. It has
// nothing to do with the one above.
int object_share(void *pool, const char *object, const char *owner, const char *tag);
int object_unshare(void *pool, const char *object, const char *owner);
// object_sharers returns the number of owners. All texts have n bytes; the last three are lists,
// and each entry ends with 0.
int object_sharers(void *pool, const char *object, char *tag, char *clients, char *owners,
	char *addrs, size_t n);
int object_evict(void *pool, const char *object, const char *client, const char *owner);

// A watch adds 1 to an eventfd when the object is notified, which it answers with a text, and
// watch_lost when it is lost.
struct watch;
#define watch_lost (1 << 20)
int watch_start(void *pool, const char *object, const char *answer, int eventfd,
	struct watch **watch);
void watch_stop(void *cluster, struct watch *watch);
// object_notify waits until all watches have answered, or for msec. The reply has the answers, as
// rados_notify2 describes it, or is NULL. The caller frees it with cluster_free.
int object_notify(void *pool, const char *object, uint64_t msec, char **reply, size_t *n);

#endif
