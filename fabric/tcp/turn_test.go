package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestTurnIsKept: a connection is not evicted while the target works on its ClientHello.
func TestTurnIsKept(t *testing.T) {
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
	key := testutil.Value(auth.NewTLSKey(auth.SHA256))(t)
	psks := testutil.Value(key.PSKs("nqn.2014-08.org.nvmexpress:uuid:"+
		"11111111-2222-3333-4444-555555555555", "nqn.2026-11.io.nvmf-target:disk0"))(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	tg := serve(t, options{cfg: Config{
		MaxConnections: 64, TLS: func(uint16) fabric.TLSPolicy { return fabric.TLSAllowed },
		PSKs: func([]byte) []auth.TLSPSK {
			close(begun)
			<-goOn
			return nil
		},
	}})
	tg.connect(t, pdu.Params{}, 4, 0) // makes the address that of an allowed host
	first := tg.dial(t)
	handshake := testutil.Value(tls.NewClient(&psks[0]))(t)
	defer handshake.Free()
	hello, _, err := handshake.Step(nil)
	testutil.Must(t, err)
	first.send(hello)
	testutil.Receive(t, "the ClientHello has its turn", begun)
	var idle []*client
	for range 20 { // there is room for 16
		idle = append(idle, tg.dial(t))
	}
	for _, c := range idle[:5] {
		c.end()
	}
	close(goOn)
	alert := make([]byte, 7)
	if n, err := first.Read(alert); n != len(alert) || alert[0] != 21 {
		t.Errorf("no alert: % x, %v", alert[:n], err)
	}
}
