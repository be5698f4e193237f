package target

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestAuthenticationRecordShares: exchanges that are not finished leave the records of wrong keys
// their lines, however many addresses they come from.
func TestAuthenticationRecordShares(t *testing.T) {
	r, _ := authHarness(t, 1)
	const begun = 300
	for i := range begun {
		from := info(nvme.TransportTCP)
		from.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i / 10)}), 1)
		q := r.dialInfo(0, from)
		r.ok(q, adminArgs(testSub).command())
		q.HangUp()
	}
	if n := strings.Count(r.log.String(), "authentication not finished"); n == 0 || n == begun {
		t.Fatalf("%d lines of %d exchanges: nothing is tested", n, begun)
	}
	wrong := testHostSide(t)
	wrong.Key = authKey(t, controllerSecret)
	admin, _ := r.connectUnproven(0, adminArgs(testSub))
	testutil.MustTrue(t, r.authenticate(admin, wrong) != nil, "a wrong key counts")
	testutil.True(t, strings.Contains(r.log.String(), `msg="authentication failed"`),
		"a wrong key has no record")
}
