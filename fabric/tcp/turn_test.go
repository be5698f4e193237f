package tcp

import (
	"net"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// busy serves TLS, and works on ClientHellos until goOn is closed. begun receives a value for each.
type busy struct {
	*target
	hello       []byte
	begun, goOn chan struct{}
}

func serveBusy(t *testing.T, connections int) *busy {
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
	key := testutil.Value(auth.NewTLSKey(auth.SHA256))(t)
	psks := testutil.Value(key.PSKs("nqn.2014-08.org.nvmexpress:uuid:"+
		"11111111-2222-3333-4444-555555555555", "nqn.2026-11.io.nvmf-target:disk0"))(t)
	b := &busy{begun: make(chan struct{}, 64), goOn: make(chan struct{})}
	b.target = serve(t, options{cfg: Config{
		MaxConnections: connections, ICReqTimeout: time.Hour,
		TLS: func(uint16) fabric.TLSPolicy { return fabric.TLSAllowed },
		PSKs: func([]byte) []auth.TLSPSK {
			b.begun <- struct{}{}
			<-b.goOn
			return nil
		},
	}})
	handshake := testutil.Value(tls.NewClient(&psks[0]))(t)
	defer handshake.Free()
	var err error
	b.hello, _, err = handshake.Step(nil)
	testutil.Must(t, err)
	return b
}

// dialHello connects and sends a ClientHello.
func (b *busy) dialHello(t *testing.T) *client {
	c := b.dial(t)
	c.send(b.hello)
	return c
}

// TestTurnIsKept: a connection is not evicted while the target works on its ClientHello.
func TestTurnIsKept(t *testing.T) {
	tg := serveBusy(t, 64)
	tg.connect(t, pdu.Params{}, 4, 0) // makes the address that of an allowed host
	first := tg.dialHello(t)
	testutil.Receive(t, "the ClientHello has its turn", tg.begun)
	var idle []*client
	for range 20 { // there is room for 16
		idle = append(idle, tg.dial(t))
	}
	for _, c := range idle[:5] {
		c.end()
	}
	close(tg.goOn)
	alert := make([]byte, 7)
	if n, err := first.Read(alert); n != len(alert) || alert[0] != 21 {
		t.Errorf("no alert: % x, %v", alert[:n], err)
	}
}

// TestLeavesBeforeTurn: a connection ends when its peer leaves, also while its ClientHello waits.
// The target does no work for it, and it takes no place that a newer one needs.
func TestLeavesBeforeTurn(t *testing.T) {
	most := turns.MaxWorkers()
	tg := serveBusy(t, 16*(most+3)) // a sixteenth of them may be from one address
	for range most {
		tg.dialHello(t)
		testutil.Receive(t, "a ClientHello has its turn", tg.begun)
	}
	for range 3 {
		closed, reset := tg.dialHello(t), tg.dialHello(t)
		testutil.Until(t, "both are accepted", func() bool {
			return tg.t.Usage().Connections == most+2
		})
		testutil.Must(t, closed.Close())
		testutil.Must(t, reset.Conn.(*net.TCPConn).SetLinger(0))
		testutil.Must(t, reset.Close())
		testutil.Until(t, "both have ended", func() bool {
			return tg.t.Usage().Connections == most
		})
	}
	close(tg.goOn)
	testutil.Until(t, "no job is left", func() bool { return tg.t.Usage().Connections == 0 })
	testutil.Equal(t, len(tg.begun), 0, "ClientHellos of peers that had left, with a turn")
}
