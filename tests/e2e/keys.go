package e2e

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// NeedTLS skips a test where TLS is not built in.
func NeedTLS(t *testing.T) {
	t.Helper()
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
}

// TLSKey and tlsKey384 are the keys of all hosts of variants with TLS.
var TLSKey, tlsKey384 = newTLSKey(auth.SHA256), newTLSKey(auth.SHA384)

func newTLSKey(h auth.Hash) *auth.TLSKey {
	k, err := auth.NewTLSKey(h)
	if err != nil {
		panic(err)
	}
	testutil.Secret(nil, k.Reveal())
	return k
}

// tlsPSK returns the first PSK of a key for a host and a subsystem, by default the host and the
// subsystem of the tests.
func tlsPSK(k *auth.TLSKey) func(host, sub string) (*auth.TLSPSK, error) {
	return func(host, sub string) (*auth.TLSPSK, error) {
		if host == "" {
			host, sub = HostNQN, SubNQN
		}
		psks, err := k.PSKs(host, sub)
		if err != nil {
			return nil, err
		}
		return &psks[0], nil
	}
}

// RequireTLS makes all connections use TLS with TLSKey or tlsKey384.
func RequireTLS(c *tcp.Config) {
	c.TLS = func(uint16) fabric.TLSPolicy { return fabric.TLSRequired }
	c.PSKs = func(identity []byte) []auth.TLSPSK {
		id, err := auth.ParseTLSIdentity(identity)
		if err != nil {
			return nil
		}
		return auth.WithIdentity(string(identity), id, []*auth.TLSKey{TLSKey, tlsKey384})
	}
}

// NewKey makes a key with a transformation.
func NewKey(t *testing.T, size int, h auth.Hash) *auth.Key {
	t.Helper()
	k := testutil.Value(auth.NewKey(size, h))(t)
	testutil.Secret(t, k.Reveal())
	return k
}
