package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestAuthentication: a host with a key connects with all of its queues, and reads and writes, with
// every hash, in one direction and in both. The groups are tested in nvme/auth.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(o *Options) { o.Reactors = 2 },
		func(t *testing.T, h *Env, v Variant) {
			for i, tc := range []struct {
				auth.Hash
				auth.Group
				both bool
			}{
				{auth.SHA256, auth.GroupNull, false},
				{auth.SHA384, auth.GroupNull, true},
				{auth.SHA512, auth.FFDHE2048, true},
				{auth.SHA256, auth.FFDHE2048, false},
			} {
				key, own := NewKey(t, 32+16*(i%3), tc.Hash), NewKey(t, 64, auth.NoHash)
				p := &auth.Policy{
					Keys: []*auth.Key{key}, ControllerKey: own, Hashes: []auth.Hash{tc.Hash},
					Groups: []auth.Group{tc.Group},
				}
				h.Target.SetHostPolicy(HostNQN, p)
				o := v.HostOptions()
				o.HostNQN, o.Key = HostNQN, key
				if tc.both {
					o.ControllerKey = own
				}
				h.use(v, o)
				want := fmt.Sprintf("hash=%v dhgroup=%v bidirectional=%t", tc.Hash, tc.Group,
					tc.both)
				testutil.True(t, strings.Contains(h.Log.String(), want),
					"the log does not have: %s\n%s", want, h.Log)
				for _, k := range []*auth.Key{key, own} {
					testutil.True(t, !strings.Contains(h.Log.String(), k.Reveal()[10:40]),
						"a key is in the log")
				}
			}
		})
}

// use connects with two I/O queues, writes and reads, authenticates once more meanwhile, and
// disconnects.
func (h *Env) use(v Variant, o host.Options) {
	h.T.Helper()
	ctx := testutil.Context(h.T)
	c := testutil.Value(host.Connect(ctx, h.Transport(v), o))(h.T)
	defer c.Close()
	for qid := uint16(1); qid <= 2; qid++ {
		q := testutil.Value(c.OpenQueue(ctx, qid, 9))(h.T)
		defer q.Close()
		b := h.Buffer(c, 1024)
		copy(b, "authenticated")
		h.Must(hosttest.Write(ctx, q, 1, 0, 1, b[:512], 0))
		h.Must(q.Authenticate(ctx, &o))
		h.Must(hosttest.Read(ctx, q, 1, 0, 1, b[512:]))
		testutil.True(h.T, bytes.Equal(b[:512], b[512:]), "other data comes back")
	}
	h.Must(c.Authenticate(ctx))
	h.Ping(c)
}

// authenticationRequired reports whether a command was refused so that the host authenticates
// again.
func authenticationRequired(err error) bool {
	var st nvme.Status
	return errors.As(err, &st) && st&^nvme.More == nvme.AuthenticationRequired
}

// TestReauthenticate: a host reads and writes, and authenticates whenever a command is refused for
// that reason, one at a time. Nothing else fails.
func TestReauthenticate(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(o *Options) { o.Reactors = 2 },
		func(t *testing.T, h *Env, v Variant) {
			ctx := testutil.Context(t)
			key := NewKey(t, 32, 0)
			h.Target.SetHostPolicy(HostNQN, &auth.Policy{
				Keys: []*auth.Key{key}, Groups: []auth.Group{auth.GroupNull},
				Reauthenticate: 50 * time.Millisecond,
			})
			o := v.HostOptions()
			o.HostNQN, o.Key = HostNQN, key
			c := testutil.Value(host.Connect(ctx, h.Transport(v), o))(h.T)
			defer c.Close()
			var queues []*host.Queue
			for qid := uint16(1); qid <= 2; qid++ {
				q := testutil.Value(c.OpenQueue(ctx, qid, 9))(h.T)
				defer q.Close()
				queues = append(queues, q)
			}
			b := h.Buffer(c, 1024)
			copy(b, "again")
			asked := 0
			retry := func(do func() error) {
				err := do()
				for authenticationRequired(err) {
					asked++
					h.Must(c.Authenticate(ctx))
					for _, q := range queues {
						h.Must(q.Authenticate(ctx, &o))
					}
					err = do()
				}
				h.Must(err)
			}
			for i := 0; asked < 3; i++ {
				q := queues[i%2]
				retry(func() error { return hosttest.Write(ctx, q, 1, 0, 1, b[:512], 0) })
				retry(func() error { return hosttest.Read(ctx, q, 1, 0, 1, b[512:]) })
				testutil.MustTrue(t, bytes.Equal(b[:512], b[512:]), "other data comes back")
			}
			n := strings.Count(h.Log.String(), "host has authenticated")
			// The log has ten such lines in ten seconds.
			testutil.True(t, n == asked+1 || n >= 10 && n <= asked,
				"asked %d times, and authenticated %d times", asked, n)
		})
}

// TestReauthenticateNot: a host that does not authenticate again is disconnected after a minute,
// and others stay.
func TestReauthenticateNot(t *testing.T) {
	testutil.Soak(t, "it takes a minute")
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		ctx := t.Context()
		other := h.Dial(v, func(o *host.Options) { o.HostNQN = HostNQN2 })
		key := NewKey(t, 32, 0)
		h.Target.SetHostPolicy(HostNQN, &auth.Policy{
			Keys: []*auth.Key{key}, Groups: []auth.Group{auth.GroupNull},
			Reauthenticate: time.Millisecond,
		})
		o := v.HostOptions()
		o.HostNQN, o.Key, o.KATO = HostNQN, key, 5*time.Second
		c, err := host.Connect(ctx, h.Transport(v), o)
		h.Must(err)
		defer c.Close()
		q := testutil.Value(c.OpenQueue(ctx, 1, 9))(h.T)
		defer q.Close()
		b := h.Buffer(c, 512)
		refused := 0
		for err = nil; err == nil; {
			if err = hosttest.Read(ctx, q, 1, 0, 1, b); authenticationRequired(err) {
				refused++
				err = nil
			}
		}
		testutil.True(t, refused >= 2 && refused <= 6, "%d commands are refused", refused)
		testutil.True(t, strings.Contains(h.Log.String(), "did not authenticate again within 1m0s"),
			"no line says why: %v\n%s", err, h.Log)
		h.Ping(other)
	})
}

// TestConcatenation: a host authenticates, connects again over TLS with the generated PSK, and
// replaces the PSK. The PSK ends with the last controller that was created with it.
func TestConcatenation(t *testing.T) {
	h := New(t, Options{TLS: "allowed", Reactors: 2})
	ctx := testutil.Context(t)
	key := NewKey(t, 32, auth.SHA256)
	h.Target.SetHostPolicy(HostNQN, &auth.Policy{Keys: []*auth.Key{key}})
	o := Variants[0].HostOptions()
	o.HostNQN, o.Key = HostNQN, key
	plain := h.Transport(Variants[0]).(host.TCP)

	secure := testutil.Value(hosttest.Concatenate(ctx, plain, o))(h.T)
	c := testutil.Value(host.Connect(ctx, secure, o))(h.T)
	defer c.Close()
	q := testutil.Value(c.OpenQueue(ctx, 1, 9))(h.T)
	b := h.Buffer(c, 1024)
	copy(b, "concatenated")
	h.Must(hosttest.Write(ctx, q, 1, 0, 1, b[:512], 0))
	h.Must(hosttest.Read(ctx, q, 1, 0, 1, b[512:]))
	const both = subsystems.SecurityAuth | subsystems.SecurityTLS
	list := testutil.Value(h.Target.Connections(ctx))(h.T)
	n := 0
	for _, i := range list {
		if i.CNTLID == c.CNTLID() && subsystems.SecurityOf(&i) == both {
			n++
		}
	}
	testutil.Equal(t, n, 2, "queues are secure: %+v", list)
	testutil.True(t, bytes.Equal(b[:512], b[512:]), "other data comes back")

	replaced := testutil.Value(hosttest.ReplacePSK(ctx, c, secure))(h.T)
	other := testutil.Value(hosttest.ReplacePSK(ctx, c, secure))(h.T)
	o.Key = nil // TLS proves the identity of the host
	second := testutil.Value(host.Connect(ctx, other, o))(h.T)
	refused := func(t host.Transport) func() bool {
		return func() bool {
			c, err := host.Dial(ctx, t, o)
			if err == nil {
				c.Close()
			}
			return errors.Is(err, host.ErrRefused)
		}
	}
	wrong := testutil.Value(other.PSK("", ""))(h.T)
	wrong = &auth.TLSPSK{
		Identity: wrong.Identity, Hash: wrong.Hash, Secret: make([]byte, len(wrong.Secret)),
	}
	forged := other
	forged.PSK = func(string, string) (*auth.TLSPSK, error) { return wrong, nil }
	testutil.True(t, refused(forged)(), "a wrong PSK counts")
	h.Until("the log says that it is wrong", func() bool {
		return strings.Contains(h.Log.String(), "presents a PSK other than")
	})
	testutil.True(t, !strings.Contains(h.Log.String(), "tls_key"),
		"the log speaks of a tls_key, and the host has none")
	second.Close()
	testutil.True(t, refused(replaced)(), "a PSK that was replaced counts")
	h.Until("the log says that it has ended", func() bool {
		return strings.Contains(h.Log.String(), "has generated has ended")
	})
	h.Until("the PSK ends with its controller", refused(other))

	mixed := testutil.Value(host.DialQueue(ctx, plain, 2, 9, c.CNTLID()))(h.T)
	defer mixed.Close()
	cqe, err := mixed.Do(ctx, host.ConnectCommand(2, 9, &o, c.CNTLID()))
	testutil.True(t, err == nil && cqe.Status().Code() == nvme.ConnectInvalidParameters,
		"an I/O queue without TLS: %v, %v", cqe.Status(), err)
	h.Ping(c)
	h.Must(q.Close())
	c.Close()
	h.Until("the first PSK ends as well", refused(secure))
	psk := testutil.Value(secure.PSK("", ""))(h.T)
	for _, secret := range []string{string(psk.Secret), key.Reveal()[10:40]} {
		testutil.True(t, !strings.Contains(h.Log.String(), secret), "a secret is in the log")
	}
}

// TestConcatenationRequired: where security requires TLS, a host without a TLS key gets one by
// concatenation, and has access to nothing else without it.
func TestConcatenationRequired(t *testing.T) {
	h := New(t, Options{TLS: "allowed", Security: "tls", Hosts: []string{HostNQN}})
	ctx := testutil.Context(t)
	key := NewKey(t, 32, auth.SHA256)
	o := Variants[0].HostOptions()
	o.HostNQN, o.Key = HostNQN, key
	plain := h.Transport(Variants[0]).(host.TCP)
	if _, err := host.Dial(ctx, plain, o); !isConnectError(err) {
		t.Errorf("a host without a key, without TLS: %v", err)
	}
	h.Target.SetHostPolicy(HostNQN, &auth.Policy{Keys: []*auth.Key{key}})
	_, err := host.Connect(ctx, plain, o)
	r, is := errors.AsType[auth.Refused](err)
	testutil.True(t, is && r.Reason == auth.ConcatenationMismatch, "without concatenation: %v", err)
	secure := testutil.Value(hosttest.Concatenate(ctx, plain, o))(h.T)
	c := testutil.Value(host.Connect(ctx, secure, o))(h.T)
	defer c.Close()
	h.Ping(c)
	q := h.Open(c, 1, 9)
	b := h.Buffer(c, 512)
	h.Must(hosttest.Read(ctx, q, 1, 0, 1, b))

	// An exchange with concatenation gives no access on the connection without TLS.
	wire := testutil.Value(host.DialQueue(ctx, plain, 0, 32, nvme.CNTLIDDynamic))(h.T)
	defer wire.Close()
	cqe := testutil.Value(wire.Do(ctx, host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)))(h.T)
	const required = nvme.ConnectATR | nvme.ConnectASCR
	testutil.True(t, nvme.ConnectResult(cqe.DW0())&required == required, "AUTHREQ is %#x",
		cqe.DW0())
	concatenating := o
	concatenating.Concatenation = auth.NewPSK
	h.Must(wire.Authenticate(ctx, &concatenating))
	var op host.Op
	op.SQE.SetOpcode(nvme.AdminIdentify)
	cqe, err = wire.Do(ctx, &op)
	testutil.True(t, err == nil && cqe.Status().Code() == nvme.AuthenticationRequired,
		"Identify without TLS: %v, %v", cqe.Status(), err)
	// The same holds for an I/O queue of the controller with TLS on its admin queue.
	wire = testutil.Value(host.DialQueue(ctx, plain, 2, 9, c.CNTLID()))(h.T)
	defer wire.Close()
	cqe, err = wire.Do(ctx, host.ConnectCommand(2, 9, &o, c.CNTLID()))
	testutil.True(t, err == nil && cqe.Status().Code() == nvme.ConnectInvalidParameters,
		"an I/O queue without TLS: %v, %v", cqe.Status(), err)
}

// TestConcatenationKeyRemoved: after the key of a host is removed or replaced, a PSK that was
// generated with it gives no new access, even if it is still in use.
func TestConcatenationKeyRemoved(t *testing.T) {
	h := New(t, Options{TLS: "allowed", Security: "tls", Hosts: []string{HostNQN}})
	ctx := testutil.Context(t)
	old, next := NewKey(t, 32, auth.SHA256), NewKey(t, 32, auth.SHA256)
	o := Variants[0].HostOptions()
	o.HostNQN, o.Key = HostNQN, old
	plain := h.Transport(Variants[0]).(host.TCP)
	for name, p := range map[string]*auth.Policy{
		"none": nil, "another": {Keys: []*auth.Key{next}},
	} {
		t.Run(name, func(t *testing.T) {
			h.Target.SetHostPolicy(HostNQN, &auth.Policy{Keys: []*auth.Key{next, old}})
			secure := testutil.Value(hosttest.Concatenate(ctx, plain, o))(h.T)
			c, err := host.Connect(ctx, secure, o) // keeps the PSK
			h.Must(err)
			defer c.Close()
			begun := testutil.Value(host.DialQueue(ctx, secure, 0, 32, nvme.CNTLIDDynamic))(h.T)
			defer begun.Close()
			h.Target.SetHostPolicy(HostNQN, p)
			if c, err := host.Dial(ctx, secure, o); err == nil {
				c.Close()
				t.Error("another controller is created")
			}
			cqe, err := begun.Do(ctx, host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic))
			testutil.True(t, err == nil && cqe.Status().Code() == nvme.ConnectInvalidParameters,
				"after the handshake: %v, %v", cqe.Status(), err)
			h.Ping(c)
		})
	}
}

func isConnectError(err error) bool {
	_, is := errors.AsType[*host.ConnectError](err)
	return is
}
