package isolation

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestMatrix has the rows of culprits on RDMA. The packages below have those on TCP.
func TestMatrix(t *testing.T) { Matrix(t, nvme.TransportRDMA, Host, Stranger, Device) }

// TestChosen: no culprit that Matrix does not know is left out silently.
func TestChosen(t *testing.T) {
	all := []row{{culprit: Host, links: onTCP}, {culprit: Device, links: onBoth}}
	list, err := chosen(all, nvme.TransportRDMA, []string{Device})
	testutil.True(t, err == nil && len(list) == 1, "%v, %v", list, err)
	for _, culprits := range [][]string{{"hosts"}, {Host}, {Device, Stranger}} {
		_, err := chosen(all, nvme.TransportRDMA, culprits)
		testutil.Fails(t, err, "there are no rows", "%v", culprits)
	}
	_, err = chosen([]row{{name: "x", culprit: "guest"}}, nvme.TransportTCP, nil)
	testutil.Fails(t, err, `x: no test runs rows of the culprit "guest"`, "")
}
