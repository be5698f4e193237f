// Package tcp has the rows of tests/isolation of hosts and devices that hosts use over TCP, in a
// process of their own.
package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/tests/isolation"
)

func TestMain(m *testing.M) { isolation.Main(m) }

func TestMatrix(t *testing.T) {
	isolation.Matrix(t, nvme.TransportTCP, isolation.Host, isolation.Device)
}

func TestStoppedTarget(t *testing.T) { isolation.StoppedTarget(t) }
