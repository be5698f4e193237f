package e2e

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// tlsKey is the key of all hosts of variants with TLS.
var tlsKey = newTLSKey(auth.SHA256)

func newTLSKey(h auth.Hash) *auth.TLSKey {
	k, err := auth.NewTLSKey(h)
	if err != nil {
		panic(err)
	}
	return k
}

// tlsPSK returns the first PSK of a key for a host and a subsystem; without names for those of the
// tests.
func tlsPSK(k *auth.TLSKey) func(host, sub string) (*auth.TLSPSK, error) {
	return func(host, sub string) (*auth.TLSPSK, error) {
		if host == "" {
			host, sub = hostNQN, subNQN
		}
		psks, err := k.PSKs(host, sub)
		if err != nil {
			return nil, err
		}
		return &psks[0], nil
	}
}

// requireTLS makes all connections use TLS with tlsKey.
func requireTLS(c *tcp.Config) {
	c.TLS = func(uint16) fabric.TLSPolicy { return fabric.TLSRequired }
	c.PSKs = func(identity []byte) []auth.TLSPSK {
		id, err := auth.ParseTLSIdentity(identity)
		if err != nil {
			return nil
		}
		psks, _ := tlsKey.PSKs(id.HostNQN, id.SubNQN)
		return psks
	}
}
