package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// underLoad returns the findings of doctor between two samples.
func underLoad(socket string) []doctor.Finding {
	d := doctor.Begin(socket)
	defer d.Close()
	return d.Findings(time.Millisecond)
}

// TestUnderLoad: there is always an answer, even without load, or without a target, and counters of
// RDMA ports are read. TestCauses of tests/operation has the other findings.
func TestUnderLoad(t *testing.T) {
	socket := t.TempDir() + "/control.sock"
	c := parsed(t, validFile+"control: {socket: "+socket+"}\n")
	s := newServer(t, Options{Config: c})
	ports := t.TempDir()
	s.ports = doctor.Ports(ports)
	testutil.Must(t, s.Start())
	list := underLoad(socket)
	testutil.True(t, len(list) == 1 && list[0].Severity == doctor.OK, "without load: %+v", list)
	if list := underLoad(t.TempDir() + "/none"); len(list) != 1 || list[0].Severity != doctor.Note {
		t.Errorf("without a target: %+v", list)
	}
	counters := filepath.Join(ports, "rxe0/ports/1/hw_counters")
	testutil.Must(t, os.MkdirAll(counters, 0o700))
	count := func(n string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(filepath.Join(counters, "rcvd_seq_err"), []byte(n), 0o600))
	}
	count("100\n")
	d := doctor.Begin(socket)
	defer d.Close()
	count("117\n")
	list = d.Findings(time.Millisecond)
	testutil.True(t, len(list) == 1 && list[0].Check == "rdma network" &&
		strings.Contains(list[0].Found, "port 1 of rxe0: packets were lost or sent again") &&
		strings.Contains(list[0].Found, "rcvd_seq_err=17"), "a port that loses packets: %+v", list)
}
