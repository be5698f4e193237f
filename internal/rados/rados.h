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

#endif
