// Package rbd implements storage on RBD images of a Ceph cluster. It loads librbd when the first
// image is opened, so machines without images do not need the library.
//
// This package does not copy data: librbd reads and writes the memory of the reactor. Threads of
// librbd complete operations. They put a completed operation on a lock-free list of the channel,
// and write the eventfd of the reactor if it sleeps. One cgo call starts a batch, and none is
// needed to take completed operations from the list. All channels share one handle of the image,
// which may hold the image's exclusive lock; see ADR 0057.
package rbd

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/rados"
)

// RetryInterval is the least time between attempts to open a lost image again. A program may change
// it before it opens one.
var RetryInterval = 10 * time.Second

// Config describes an image that is served.
type Config struct {
	// Image is its name, see ParseName.
	Image string
	Ceph  rados.Access
	// BlockSize is the logical block size in bytes. Images have none of their own.
	BlockSize int
	ReadOnly  bool
	// Gate decides when the image is open; nil: always.
	Gate *Gate
	// Companion is open while the image is open for its gate; nil for none.
	Companion Companion
	// Journal has the connections of images without a gate; nil: nothing prevents late writes of
	// this process after it was killed.
	Journal rados.Journal
	// Log is for warnings; nil for none.
	Log *slog.Logger

	probes bool // the image is not written, so others may have it open
}

func (c *Config) writes() bool { return !c.ReadOnly && !c.probes }

// Holder is the gateway that opens the images of a gate for writing.
type Holder struct {
	// Cluster is its connection.
	Cluster *rados.Cluster
	// Group names the group of gateways and images: an image is open for one group at a time.
	Group string
	// Instance names this gateway and its connection. No other one has that name.
	Instance string
}

// Companion is something that belongs to an image of a gate.
type Companion interface {
	// Open is called after the image with this identity was opened. If it fails, the image stays
	// offline, and is tried again. Until it has returned there is no I/O.
	Open(h *Holder, identity string) error
	// Close is called when the I/O has ended, before the image is closed, and at times when it is
	// not open, also after an Open that has failed. It may block.
	Close()
}

// Access is a description of the access to a cluster, for doctor.
type Access struct {
	// Library is the version of librbd.
	Library string
	// Fences is an error if the client may not fence connections; see backend.Fencer.
	Fences error
	// Fenced has the connections of this machine that are fenced, and until when.
	Fenced []string
}

// Name is the name of an image. Namespace and Snapshot may be empty.
type Name struct{ Pool, Namespace, Image, Snapshot string }

// ParseName reads a name, pool[/namespace]/image[@snapshot].
func ParseName(text string) (n Name, err error) {
	rest, snapshot, at := strings.Cut(text, "@")
	parts := strings.Split(rest, "/")
	n = Name{Pool: parts[0], Image: parts[len(parts)-1], Snapshot: snapshot}
	if len(parts) == 3 {
		n.Namespace = parts[1]
		parts = parts[1:]
	}
	if len(parts) != 2 || n.Pool == "" || parts[0] == "" || n.Image == "" ||
		at && snapshot == "" || strings.ContainsAny(text, "\x00\n") {
		return n, backend.WithHint(errors.New("is not the name of an image"),
			"Write pool/image, pool/namespace/image, or one of them with @snapshot.")
	}
	return n, nil
}
