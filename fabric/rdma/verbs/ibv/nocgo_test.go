//go:build !cgo

package ibv

import (
	"errors"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

func TestNotBuilt(t *testing.T) {
	if _, err := New().NewCM(); !errors.Is(err, verbs.ErrNotBuilt) {
		t.Errorf("NewCM: %v", err)
	}
	if _, err := New().Devices(); !errors.Is(err, verbs.ErrNotBuilt) {
		t.Errorf("Devices: %v", err)
	}
}
