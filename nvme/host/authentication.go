package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// ErrNoKey is returned if a controller requires authentication of a host without a key.
var ErrNoKey = errors.New("the controller requires authentication, and the host has no key")

// Authenticate authenticates the admin queue, as Dial does if the controller requires it. An error
// is often an auth.Refused. The controller then ends the queue.
func (c *Controller) Authenticate(ctx context.Context) error {
	return c.o.authenticate(func(op *Op) (nvme.CQE, error) { return c.Admin(ctx, op) })
}

// Authenticate authenticates an I/O queue as OpenQueue does if the controller requires it. o are
// the options with which Connect or Dial has made the controller. No other command may be
// outstanding.
func (q *Queue) Authenticate(ctx context.Context, o *Options) error {
	return o.authenticate(func(op *Op) (nvme.CQE, error) { return q.Do(ctx, op) })
}

// authenticate runs DH-HMAC-CHAP; do carries out its commands.
func (o *Options) authenticate(do func(*Op) (nvme.CQE, error)) error {
	if o.Key == nil {
		return ErrNoKey
	}
	h := auth.Host{
		HostNQN: o.HostNQN, SubNQN: o.SubNQN, Key: o.Key, ControllerKey: o.ControllerKey,
		Hashes: o.Hashes, Groups: o.Groups, Concatenation: o.Concatenation,
	}
	run := func(t nvme.FabricsType, data []byte) ([]byte, error) {
		op := Op{Data: data}
		op.SQE.Auth().Set(t, uint32(len(data)))
		cqe, err := do(&op)
		if err == nil && !cqe.Status().OK() {
			err = cqe.Status()
		}
		if err != nil {
			err = fmt.Errorf("authentication: %w", err)
		}
		return op.Data, err
	}
	// step sends a message and answers the next one with then.
	step := func(m []byte, then func([]byte) ([]byte, error)) ([]byte, error) {
		if _, err := run(nvme.FabricsAuthSend, m); err != nil {
			return nil, err
		}
		m, err := run(nvme.FabricsAuthReceive, make([]byte, auth.MaxMessage))
		if err != nil {
			return nil, err
		}
		m, err = then(m)
		if err != nil && m != nil { // tells the controller
			_, failed := run(nvme.FabricsAuthSend, m)
			err = errors.Join(err, failed)
		}
		return m, err
	}
	m, err := step(h.Negotiate(1), h.Challenged)
	if err == nil {
		m, err = step(m, h.Succeeded)
	}
	if err == nil && m != nil {
		_, err = run(nvme.FabricsAuthSend, m)
	}
	o.Generated = h.Generated
	return err
}
