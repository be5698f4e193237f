// Package group decides which of several gateways serves an ANA group on storage that all of them
// can reach. At most one gateway may write to the storage, and no write of an earlier one may be
// carried out after the next one has begun to serve hosts.
//
// Machine makes the decisions, and carries out nothing itself. It works on a Record, a lease and
// fences. All gateways share the Record, and change it by versioned writes. A storage system
// provides State, Lease and Fence. Only fences and versioned writes keep data safe: the lease says
// when it is time to take over. See ADR 0058.
package group

import (
	"context"
	"errors"
	"time"
)

// State keeps the record of a group.
type State interface {
	// Get returns the record and its version: no record and 0 before the first Put.
	Get(ctx context.Context) (data []byte, version uint64, err error)
	// Put replaces the record and returns the new version. It fails with ErrConflict, and changes
	// nothing, if the version is another one than that of the argument. After other errors the
	// record may have been replaced, or may be later.
	Put(ctx context.Context, data []byte, version uint64) (uint64, error)
	// Watch calls changed, on any goroutine, after the record may have changed. Calls can get lost.
	Watch(ctx context.Context, changed func()) error
	// Present returns the instances that watch the record and answer at once: they run and reach
	// the storage. It returns nil if that is not known.
	Present(ctx context.Context) ([]string, error)
}

// Lease is held by one instance at a time, until some time after it was last renewed.
type Lease interface {
	// Acquire takes the lease, or renews it, for d. It fails with ErrHeld while another instance
	// has it.
	Acquire(ctx context.Context, d time.Duration) error
	// Renew fails with ErrLost if this instance does not have the lease.
	Renew(ctx context.Context, d time.Duration) error
	// Release succeeds if this instance does not have the lease.
	Release(ctx context.Context) error
	// Lessee returns the instance that has the lease, "" for none.
	Lessee(ctx context.Context) (string, error)
	// Break ends the lease of an instance. It succeeds if the instance does not have it.
	Break(ctx context.Context, instance string) error
}

// Fence keeps instances from the storage.
type Fence interface {
	// Fence makes the storage refuse the connections with these addresses for d, and returns the
	// time that it goes on refusing all of them: a fence that exists already may end sooner and
	// can be renewed only then. I/O that this instance begins after Fence has returned is ordered
	// after all of theirs that is carried out.
	Fence(ctx context.Context, addrs []string, d time.Duration) (left time.Duration, err error)
}

// Errors of engines.
var (
	// ErrConflict: the record has another version.
	ErrConflict = errors.New("the record of the group has changed")
	// ErrHeld: another instance has the lease.
	ErrHeld = errors.New("another gateway has the lease of the group")
	// ErrLost: this instance does not have the lease any more.
	ErrLost = errors.New("the lease of the group is lost")
	// ErrFenced: the storage refuses this instance.
	ErrFenced = errors.New("the storage has fenced this gateway")
)
