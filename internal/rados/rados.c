//go:build cgo

#include "rados.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/types.h>
#include <unistd.h>

// These are functions of librados.h of Ceph 16 and later.
#define RADOS(F) \
	F(int, rados_create, (void **cluster, const char *id)) \
	F(int, rados_conf_read_file, (void *cluster, const char *path)) \
	F(int, rados_conf_set, (void *cluster, const char *option, const char *value)) \
	F(int, rados_connect, (void *cluster)) \
	F(void, rados_shutdown, (void *cluster)) \
	F(int, rados_cluster_fsid, (void *cluster, char *buf, size_t n)) \
	F(int, rados_getaddrs, (void *cluster, char **addrs)) \
	F(int, rados_wait_for_latest_osdmap, (void *cluster)) \
	F(int, rados_mon_command, (void *cluster, const char **command, size_t command_n, \
		const char *in, size_t in_n, char **out, size_t *out_n, char **status, \
		size_t *status_n)) \
	F(void, rados_buffer_free, (char *buf)) \
	F(int, rados_ioctx_create, (void *cluster, const char *pool, void **ioctx)) \
	F(void, rados_ioctx_set_namespace, (void *ioctx, const char *name)) \
	F(void, rados_set_pool_full_try, (void *ioctx)) \
	F(void, rados_ioctx_destroy, (void *ioctx)) \
	F(int, rados_read, (void *ioctx, const char *object, char *buf, size_t n, uint64_t off)) \
	F(uint64_t, rados_get_last_version, (void *ioctx)) \
	F(void *, rados_create_write_op, (void)) \
	F(void, rados_release_write_op, (void *op)) \
	F(void, rados_write_op_create, (void *op, int exclusive, const char *category)) \
	F(void, rados_write_op_assert_version, (void *op, uint64_t version)) \
	F(void, rados_write_op_write_full, (void *op, const char *buf, size_t n)) \
	F(int, rados_write_op_operate, (void *op, void *ioctx, const char *object, time_t *mtime, \
		int flags)) \
	F(int, rados_lock_exclusive, (void *ioctx, const char *object, const char *lock, \
		const char *cookie, const char *text, struct timeval *duration, uint8_t flags)) \
	F(int, rados_lock_shared, (void *ioctx, const char *object, const char *lock, \
		const char *cookie, const char *tag, const char *text, struct timeval *duration, \
		uint8_t flags)) \
	F(int, rados_unlock, (void *ioctx, const char *object, const char *lock, \
		const char *cookie)) \
	F(ssize_t, rados_list_lockers, (void *ioctx, const char *object, const char *lock, \
		int *exclusive, char *tag, size_t *tag_n, char *clients, size_t *clients_n, \
		char *cookies, size_t *cookies_n, char *addrs, size_t *addrs_n)) \
	F(int, rados_break_lock, (void *ioctx, const char *object, const char *lock, \
		const char *client, const char *cookie)) \
	F(int, rados_watch2, (void *ioctx, const char *object, uint64_t *cookie, \
		void (*notified)(void *, uint64_t, uint64_t, uint64_t, void *, size_t), \
		void (*lost)(void *, uint64_t, int), void *arg)) \
	F(int, rados_unwatch2, (void *ioctx, uint64_t cookie)) \
	F(int, rados_notify2, (void *ioctx, const char *object, const char *buf, int n, \
		uint64_t timeout_ms, char **reply, size_t *reply_n)) \
	F(int, rados_notify_ack, (void *ioctx, const char *object, uint64_t notify, \
		uint64_t cookie, const char *buf, int n)) \
	F(int, rados_watch_flush, (void *cluster))

#define DECLARE(result, name, args) static result (*name) args;
RADOS(DECLARE)

const char *cluster_load(void)
{
	void *library = dlopen("librados.so.2", RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return dlerror();
#define FIND(result, name, args) \
	*(void **)&name = dlsym(library, #name); \
	if (name == NULL) \
		return dlerror();
	RADOS(FIND)
	return NULL;
}

int cluster_open(const char *user, const char *conf, const char *keyring, void **cluster)
{
	// A cache would lose completed writes. An operation on objects with a deadline could be carried
	// out after it has failed. Only requests to the monitors have deadlines.
	static const char *const options[][2] = {
		{"rbd_cache", "false"}, {"rbd_plugins", ""}, {"rados_osd_op_timeout", "0"},
		{"rados_mon_op_timeout", "10"}, {"client_mount_timeout", "10"}, {"admin_socket", ""},
	};
	void *c;
	int err = rados_create(&c, user);
	if (err < 0)
		return err;
	err = rados_conf_read_file(c, conf);
	for (size_t i = 0; err >= 0 && i < sizeof options / sizeof *options; i++)
		err = rados_conf_set(c, options[i][0], options[i][1]);
	if (err >= 0 && *keyring != 0)
		err = rados_conf_set(c, "keyring", keyring);
	if (err >= 0)
		err = rados_connect(c);
	if (err < 0) {
		rados_shutdown(c);
		return err;
	}
	*cluster = c;
	return 0;
}

void cluster_close(void *cluster) { rados_shutdown(cluster); }

int cluster_fsid(void *cluster, char *text, size_t n)
{
	return rados_cluster_fsid(cluster, text, n);
}

int cluster_wait(void *cluster) { return rados_wait_for_latest_osdmap(cluster); }

void cluster_free(char *text) { rados_buffer_free(text); }

int cluster_addrs(void *cluster, char **text) { return rados_getaddrs(cluster, text); }

int cluster_command(void *cluster, const char *command, char **out, size_t *out_n, char **status,
	size_t *status_n)
{
	return rados_mon_command(cluster, &command, 1, "", 0, out, out_n, status, status_n);
}

int pool_open(void *cluster, const char *name, const char *space, void **pool)
{
	int err = rados_ioctx_create(cluster, name, pool);
	if (err < 0)
		return err;
	rados_ioctx_set_namespace(*pool, space);
	rados_set_pool_full_try(*pool); // a full pool fails writes instead of delaying them
	return 0;
}

void pool_close(void *pool) { rados_ioctx_destroy(pool); }

int object_read(void *pool, const char *object, char *buf, size_t n, uint64_t *version)
{
	int got = rados_read(pool, object, buf, n, 0);
	*version = got < 0 ? 0 : rados_get_last_version(pool);
	return got;
}

int object_write(void *pool, const char *object, const char *buf, size_t n, uint64_t *version)
{
	void *op = rados_create_write_op();
	if (*version == 0)
		rados_write_op_create(op, 1, NULL);
	else
		rados_write_op_assert_version(op, *version);
	rados_write_op_write_full(op, buf, n);
	enum { full_force = 128 }; // LIBRADOS_OPERATION_FULL_FORCE: records are small
	int err = rados_write_op_operate(op, pool, object, NULL, full_force);
	rados_release_write_op(op);
	if (err >= 0)
		*version = rados_get_last_version(pool);
	return err;
}

// lock is the name of the lock of an object.
static const char lock[] = "lease";

int object_lock(void *pool, const char *object, const char *owner, uint64_t usec, int must_renew)
{
	// LIBRADOS_LOCK_FLAG_MAY_RENEW and LIBRADOS_LOCK_FLAG_MUST_RENEW
	struct timeval d = {usec / 1000000, usec % 1000000};
	return rados_lock_exclusive(pool, object, lock, owner, "", &d, must_renew ? 2 : 1);
}

int object_unlock(void *pool, const char *object, const char *owner)
{
	return rados_unlock(pool, object, lock, owner);
}

int object_locker(void *pool, const char *object, char *client, size_t client_n, char *owner,
	size_t owner_n)
{
	char tag[64], addr[256];
	size_t tag_n = sizeof tag, addr_n = sizeof addr;
	int exclusive;
	*client = *owner = 0;
	return rados_list_lockers(pool, object, lock, &exclusive, tag, &tag_n, client, &client_n,
		owner, &owner_n, addr, &addr_n);
}

int object_break(void *pool, const char *object, const char *client, const char *owner)
{
	return rados_break_lock(pool, object, lock, client, owner);
}

// shared is the name of the lock that several owners may have.
static const char shared[] = "nvmf.group";

int object_share(void *pool, const char *object, const char *owner, const char *tag)
{
	enum { may_renew = 1 }; // LIBRADOS_LOCK_FLAG_MAY_RENEW
	return rados_lock_shared(pool, object, shared, owner, tag, "", NULL, may_renew);
}

int object_unshare(void *pool, const char *object, const char *owner)
{
	return rados_unlock(pool, object, shared, owner);
}

int object_sharers(void *pool, const char *object, char *tag, char *clients, char *owners,
	char *addrs, size_t n)
{
	size_t tag_n = n, clients_n = n, owners_n = n, addrs_n = n;
	int exclusive;
	return rados_list_lockers(pool, object, shared, &exclusive, tag, &tag_n, clients, &clients_n,
		owners, &owners_n, addrs, &addrs_n);
}

int object_evict(void *pool, const char *object, const char *client, const char *owner)
{
	return rados_break_lock(pool, object, shared, client, owner);
}

struct watch {
	void *pool;
	char *object, *answer;
	uint64_t cookie;
	int eventfd;
};

static void wake(struct watch *w, uint64_t value)
{
	while (write(w->eventfd, &value, sizeof value) < 0 && errno == EINTR)
		;
}

static void notified(void *arg, uint64_t notify, uint64_t cookie, uint64_t notifier, void *data,
	size_t n)
{
	struct watch *w = arg;
	(void)notifier, (void)data, (void)n;
	rados_notify_ack(w->pool, w->object, notify, cookie, w->answer, strlen(w->answer));
	wake(w, 1);
}

static void lost(void *arg, uint64_t cookie, int err)
{
	(void)cookie, (void)err;
	wake(arg, watch_lost);
}

static void watch_free(struct watch *w)
{
	free(w->object);
	free(w->answer);
	free(w);
}

int watch_start(void *pool, const char *object, const char *answer, int eventfd,
	struct watch **watch)
{
	struct watch *w = calloc(1, sizeof *w);
	if (w == NULL)
		return -ENOMEM;
	w->object = strdup(object);
	w->answer = strdup(answer);
	w->pool = pool;
	w->eventfd = eventfd;
	int err = -ENOMEM;
	if (w->object != NULL && w->answer != NULL)
		err = rados_watch2(pool, object, &w->cookie, notified, lost, w);
	if (err < 0) {
		watch_free(w);
		return err;
	}
	*watch = w;
	return 0;
}

void watch_stop(void *cluster, struct watch *w)
{
	rados_unwatch2(w->pool, w->cookie);
	rados_watch_flush(cluster); // no callback runs after it
	watch_free(w);
}

int object_notify(void *pool, const char *object, uint64_t msec, char **reply, size_t *n)
{
	return rados_notify2(pool, object, "", 0, msec, reply, n);
}
