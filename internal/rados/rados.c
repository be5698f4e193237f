//go:build cgo

#include "rados.h"

#include <dlfcn.h>

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
	F(void, rados_ioctx_destroy, (void *ioctx))

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
