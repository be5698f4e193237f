package isolation

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestMatrix has the rows of culprits on RDMA. The packages below have those on TCP.
func TestMatrix(t *testing.T) { Matrix(t, nvme.TransportRDMA, Host, Stranger, Device) }
