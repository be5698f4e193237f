// The calls of librbd that this package needs, and the path of completions from their
// threads to a reactor.

#ifndef NVMF_RBD_H
#define NVMF_RBD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

// The kinds of operations.
enum { kind_read, kind_write, kind_flush, kind_zero, kind_zero_thin, kind_discard };

// An op is one operation of librbd. Its channel has a fixed number of them.
struct op {
	struct op *next;        // on the list of finished operations
	struct channel *channel;
	int64_t result;         // the number of bytes read, 0, or a negative error number
	uint64_t off, len;      // in bytes
	struct iovec *iov;      // memory of a read or write; the array belongs to the op
	int32_t count, room;    // entries of iov in use, and allocated
	int32_t kind, slot;
};

// A channel is the part of a reactor's channel that threads of librbd use.
struct channel {
	_Atomic(struct op *) finished; // newest first
	_Atomic(int) armed;            // the reactor sleeps, or is about to
	_Atomic(int) inside;           // completion functions that have not returned
	int eventfd;                   // wakes the reactor
	int32_t depth;
	int32_t *batch;                // slots of the operations to start
	struct op *ops;
};

// library_version returns the version of librbd, as major * 1000 + minor.
int library_version(void);
// rbd_load loads the library. It returns NULL, or the text of the error.
const char *rbd_load(void);

struct channel *channel_new(int depth, int eventfd);
void channel_free(struct channel *c);
int op_reserve(struct op *o, int count);
// channel_start starts n operations of the batch on an image. Each comes to the list of finished
// operations sooner or later.
void channel_start(struct channel *c, void *image, int n);

// image_open opens an image. snapshot is NULL for none.
int image_open(void *pool, const char *name, const char *snapshot, int read_only, void **image);
int image_close(void *image);
int image_stat(void *image, uint64_t *size, uint64_t *unit, char *id, size_t n);
// image_cached returns 1 if a setting of the pool or image, which comes before those of the
// connection, lets librbd have a cache. root is the pool without a namespace.
int image_cached(void *root, void *image);
// image_copy returns 1 if the image is mirrored from another one, and so takes no writes.
int image_copy(void *image);
// image_lock returns 1 if a user has locked the image ("rbd lock add"), with the name of the client
// and the lock. Locks of the feature exclusive-lock do not count, since clients pass them on.
int image_lock(void *image, char *client, char *lock, size_t n);
// image_space counts the bytes of the image's objects, if the image knows them (fast-diff).
int image_space(void *image, uint64_t size, uint64_t *used);

#endif
