// Package strangers has the rows of tests/isolation of strangers on TCP, in a process of their own.
package strangers

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/tests/isolation"
)

func TestMain(m *testing.M) { isolation.Main(m) }

func TestMatrix(t *testing.T) { isolation.Matrix(t, nvme.TransportTCP, isolation.Stranger) }
