package admission

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
)

var one, two = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

// refused expects an error with a text, or none.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %q", err, text)
	}
}

func TestCounter(t *testing.T) {
	c := New(Limits{Connections: 3, PerHost: 2, Memory: 100 << 10})
	refused(t, c.Admit(one, 10<<10), "")
	refused(t, c.Admit(one, 10<<10), "")
	refused(t, c.Admit(one, 10<<10), "2 connections from this address")
	refused(t, c.Admit(two, 81<<10),
		"2 queues have 20 KiB of memory and this one wants 81, the limit is 100")
	refused(t, c.Admit(two, 0), "")
	refused(t, c.Admit(netip.MustParseAddr("192.0.2.3"), 0), "3 connections are open")
	if u := c.Usage(); u != (fabric.Usage{
		Connections: 3, Memory: 20 << 10,
		MemoryLimit: 100 << 10,
	}) {
		t.Errorf("%+v", u) // what is refused leaves nothing
	}
	refused(t, c.Charge(80<<10), "")
	refused(t, c.Charge(1), "the limit is 100")
	c.Leave(one)
	refused(t, c.Admit(one, 0), "")
	c.Uncharge(100 << 10)
	c.Leave(one)
	c.Leave(one)
	c.Leave(two)
	if u := c.Usage(); u.Connections != 0 || u.Memory != 0 || len(c.perHost) != 0 {
		t.Errorf("%+v is left, of %d hosts", u, len(c.perHost))
	}
	c.Close()
	refused(t, c.Admit(one, 0), "closing")
}
