package app

import (
	"context"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestHangupKeepsTheConfiguration: SIGHUP does not reload. Although the file is broken by then,
// hosts that are connected stay so, and others can connect (C11).
func TestHangupKeepsTheConfiguration(t *testing.T) {
	file := writeConfig(t, validFile)
	c, err := config.Load(file, nil, backends)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, Options{Config: c})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	before, err := host.Connect(ctx, host.TCP{Addr: s.Addrs()[0].AddrPort}, hostOptions(testNQN))
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := os.WriteFile(file, []byte("subsystems: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// unbuffered: the second is taken when the first has been dealt with
	signals := make(chan os.Signal)
	ended := make(chan error, 1)
	go func() {
		ended <- (&program{server: s, log: quiet(), out: io.Discard}).run(signals, nil,
			nil)
	}()
	for range 2 {
		select {
		case signals <- syscall.SIGHUP:
		case err := <-ended:
			t.Fatalf("the program ended: %v", err)
		}
	}
	if err := before.Err(); err != nil {
		t.Errorf("a host lost its connection: %v", err)
	}
	writeAndRead(t, host.TCP{Addr: s.Addrs()[0].AddrPort})
	signals <- syscall.SIGTERM
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}
