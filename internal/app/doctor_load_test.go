package app

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/doctor"
)

// TestUnderLoad: there is always an answer, also without load, or without a target; TestCauses has
// the others.
func TestUnderLoad(t *testing.T) {
	socket := t.TempDir() + "/control.sock"
	c, err := Parse("test.yaml", []byte(validFile+"control: {socket: "+socket+"}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, Options{Config: c})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if list := underLoad(socket); len(list) != 1 || list[0].Severity != doctor.OK {
		t.Errorf("without load: %+v", list)
	}
	if list := underLoad(t.TempDir() + "/none"); len(list) != 1 || list[0].Severity != doctor.Note {
		t.Errorf("without a target: %+v", list)
	}
}
