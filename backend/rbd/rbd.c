//go:build cgo

#include "rbd.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The library is loaded when the first image is opened, so a program that exports no image runs
// without it. Its functions and structures are those of librbd.h of Ceph 16 and later.

struct image_info {
	uint64_t size, object_size, objects;
	int order;
	char prefix[24];
	int64_t parent_pool;
	char parent[96];
};

struct mirror_info {
	char *global_id;
	int state;
	_Bool primary;
};

enum { mirror_enabled = 1 }; // RBD_MIRROR_IMAGE_ENABLED

// fast_diff is RBD_FEATURE_FAST_DIFF, and map_invalid has RBD_FLAG_OBJECT_MAP_INVALID and
// RBD_FLAG_FAST_DIFF_INVALID.
enum { fast_diff = 1 << 4, map_invalid = 3 };

// write_zeroes_thick is RBD_WRITE_ZEROES_FLAG_THICK_PROVISION.
enum { write_zeroes_thick = 1 };

#define RBD(F) \
	F(void, rbd_version, (int *major, int *minor, int *extra)) \
	F(int, rbd_open, (void *ioctx, const char *name, void **image, const char *snapshot)) \
	F(int, rbd_open_read_only, \
		(void *ioctx, const char *name, void **image, const char *snapshot)) \
	F(int, rbd_close, (void *image)) \
	F(int, rbd_stat, (void *image, struct image_info *info, size_t n)) \
	F(int, rbd_get_stripe_unit, (void *image, uint64_t *unit)) \
	F(int, rbd_get_features, (void *image, uint64_t *features)) \
	F(int, rbd_get_flags, (void *image, uint64_t *flags)) \
	F(int, rbd_diff_iterate2, (void *image, const char *from, uint64_t off, uint64_t n, \
		uint8_t parent, uint8_t whole_objects, \
		int (*each)(uint64_t, size_t, int, void *), void *arg)) \
	F(int, rbd_get_id, (void *image, char *id, size_t n)) \
	F(int, rbd_mirror_image_get_info, (void *image, struct mirror_info *info, size_t n)) \
	F(void, rbd_mirror_image_get_info_cleanup, (struct mirror_info *info)) \
	F(ssize_t, rbd_list_lockers, (void *image, int *exclusive, char *tag, size_t *tag_n, \
		char *clients, size_t *clients_n, char *cookies, size_t *cookies_n, char *addrs, \
		size_t *addrs_n)) \
	F(int, rbd_metadata_list, (void *image, const char *after, uint64_t most, char *keys, \
		size_t *keys_n, char *values, size_t *values_n)) \
	F(int, rbd_pool_metadata_list, (void *ioctx, const char *after, uint64_t most, char *keys, \
		size_t *keys_n, char *values, size_t *values_n)) \
	F(int, rbd_aio_create_completion, \
		(void *arg, void (*finished)(void *, void *), void **completion)) \
	F(void, rbd_aio_release, (void *completion)) \
	F(ssize_t, rbd_aio_get_return_value, (void *completion)) \
	F(int, rbd_aio_readv, (void *image, const struct iovec *iov, int n, uint64_t off, \
		void *completion)) \
	F(int, rbd_aio_writev, (void *image, const struct iovec *iov, int n, uint64_t off, \
		void *completion)) \
	F(int, rbd_aio_flush, (void *image, void *completion)) \
	F(int, rbd_aio_discard, (void *image, uint64_t off, uint64_t n, void *completion)) \
	F(int, rbd_aio_write_zeroes, (void *image, uint64_t off, size_t n, void *completion, \
		int flags, int op_flags))

#define DECLARE(result, name, args) static result (*name) args;
RBD(DECLARE)

const char *rbd_load(void)
{
	void *library = dlopen("librbd.so.1", RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return dlerror();
#define FIND(result, name, args) \
	*(void **)&name = dlsym(library, #name); \
	if (name == NULL) \
		return dlerror();
	RBD(FIND)
	return NULL;
}

int library_version(void)
{
	int major, minor, extra;
	rbd_version(&major, &minor, &extra);
	return major * 1000 + minor;
}

struct channel *channel_new(int depth, int eventfd)
{
	struct channel *c = calloc(1, sizeof *c);
	if (c == NULL)
		return NULL;
	c->ops = calloc(depth, sizeof *c->ops);
	c->batch = calloc(depth, sizeof *c->batch);
	if (c->ops == NULL || c->batch == NULL) {
		channel_free(c);
		return NULL;
	}
	c->depth = depth;
	c->eventfd = eventfd;
	for (int i = 0; i < depth; i++) {
		c->ops[i].channel = c;
		c->ops[i].slot = i;
	}
	return c;
}

void channel_free(struct channel *c)
{
	// The last operations have been taken from the list, and the functions that put them there
	// are about to return.
	while (atomic_load(&c->inside) != 0)
		sched_yield();
	for (int i = 0; i < c->depth; i++)
		free(c->ops[i].iov);
	free(c->ops);
	free(c->batch);
	free(c);
}

int op_reserve(struct op *o, int count)
{
	struct iovec *iov = realloc(o->iov, count * sizeof *iov);
	if (iov == NULL)
		return -ENOMEM;
	o->iov = iov;
	o->room = count;
	return 0;
}

// finish puts an operation on the list of its channel and wakes the reactor if it sleeps. Any
// thread may call it.
static void finish(struct op *o, int64_t result)
{
	struct channel *c = o->channel;
	atomic_fetch_add(&c->inside, 1);
	o->result = result;
	o->next = atomic_load(&c->finished);
	while (!atomic_compare_exchange_weak(&c->finished, &o->next, o))
		;
	if (atomic_exchange(&c->armed, 0)) {
		uint64_t one = 1;
		while (write(c->eventfd, &one, sizeof one) < 0 && errno == EINTR)
			;
	}
	atomic_fetch_sub(&c->inside, 1);
}

static void completed(void *completion, void *arg)
{
	int64_t result = rbd_aio_get_return_value(completion);
	rbd_aio_release(completion);
	finish(arg, result);
}

static int start(struct op *o, void *image, void *completion)
{
	switch (o->kind) {
	case kind_read:
		return rbd_aio_readv(image, o->iov, o->count, o->off, completion);
	case kind_write:
		return rbd_aio_writev(image, o->iov, o->count, o->off, completion);
	case kind_flush:
		return rbd_aio_flush(image, completion);
	case kind_zero:
		return rbd_aio_write_zeroes(image, o->off, o->len, completion, write_zeroes_thick, 0);
	case kind_zero_thin:
		return rbd_aio_write_zeroes(image, o->off, o->len, completion, 0, 0);
	default:
		return rbd_aio_discard(image, o->off, o->len, completion);
	}
}

void channel_start(struct channel *c, void *image, int n)
{
	for (int i = 0; i < n; i++) {
		struct op *o = &c->ops[c->batch[i]];
		void *completion;
		int err = rbd_aio_create_completion(o, completed, &completion);
		if (err == 0 && (err = start(o, image, completion)) < 0)
			rbd_aio_release(completion);
		if (err < 0)
			finish(o, err);
	}
}

int image_open(void *pool, const char *name, const char *snapshot, int read_only, void **image)
{
	return read_only ? rbd_open_read_only(pool, name, image, snapshot)
			: rbd_open(pool, name, image, snapshot);
}

int image_close(void *image) { return rbd_close(image); }

int image_cached(void *root, void *image)
{
	// The caches in memory, and of the plugin pwl_cache: the last name before that of the setting,
	// its name, and its value without a cache. A client with a namespace of the pool may list the
	// settings of the pool, but not get one.
	static const char *const settings[][3] = {
		{"conf_rbd_c", "conf_rbd_cache", "false"}, {"conf_rbd_plugin", "conf_rbd_plugins", ""},
	};
	for (int i = 0; i < 4; i++) {
		const char *const *s = settings[i / 2];
		char key[512] = "", value[4096] = "";
		size_t key_n = sizeof key, value_n = sizeof value;
		int err = i % 2 ? rbd_metadata_list(image, s[0], 1, key, &key_n, value, &value_n)
			: rbd_pool_metadata_list(root, s[0], 1, key, &key_n, value, &value_n);
		if (err < 0 && err != -ENOENT)
			return err;
		if (err >= 0 && strcmp(key, s[1]) == 0 && strcmp(value, s[2]) != 0)
			return 1;
	}
	return 0;
}

int image_copy(void *image)
{
	struct mirror_info info;
	int err = rbd_mirror_image_get_info(image, &info, sizeof info);
	if (err < 0)
		return err;
	int copy = info.state == mirror_enabled && !info.primary;
	rbd_mirror_image_get_info_cleanup(&info);
	return copy;
}

int image_lock(void *image, char *client, char *lock, size_t n)
{
	char tag[4096], addrs[4096];
	size_t tag_n = sizeof tag, client_n = n, lock_n = n, addrs_n = sizeof addrs;
	int exclusive;
	ssize_t count = rbd_list_lockers(image, &exclusive, tag, &tag_n, client, &client_n, lock,
		&lock_n, addrs, &addrs_n);
	if (count <= 0)
		return count;
	return strncmp(lock, "auto ", 5) != 0;
}

int image_stat(void *image, uint64_t *size, uint64_t *unit, char *id, size_t n)
{
	struct image_info info;
	int err = rbd_stat(image, &info, sizeof info);
	if (err >= 0)
		err = rbd_get_stripe_unit(image, unit);
	if (err >= 0)
		err = rbd_get_id(image, id, n);
	*size = info.size;
	return err;
}

static int add_object(uint64_t off, size_t len, int exists, void *used)
{
	(void)off;
	if (exists)
		*(uint64_t *)used += len;
	return 0;
}

int image_space(void *image, uint64_t size, uint64_t *used)
{
	uint64_t features, flags;
	int err = rbd_get_features(image, &features);
	if (err >= 0)
		err = rbd_get_flags(image, &flags);
	if (err >= 0 && ((features & fast_diff) == 0 || (flags & map_invalid) != 0))
		err = -EOPNOTSUPP;
	if (err >= 0)
		err = rbd_diff_iterate2(image, NULL, 0, size, 0, 1, add_object, used);
	return err;
}
