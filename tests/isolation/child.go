package isolation

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// childMode in the environment turns a process of this test into a target, or into a host that
// reads from the address in the value. Both print a line when they are ready.
const (
	childMode = "NVMF_ISOLATION_CHILD"
	asTarget  = "target"
)

func childMain(mode string) int {
	run := func() error { return readForever(mode) }
	if mode == asTarget {
		run = serve
	}
	if err := run(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// readForever keeps a full queue of reads in flight until it is killed.
func readForever(addr string) error {
	const depth, size = 64, 128 << 10
	ctx := context.Background()
	c, err := host.Connect(ctx, host.TCP{Addr: netip.MustParseAddrPort(addr)},
		hostOptions(culpritNQN))
	if err != nil {
		return err
	}
	q, err := c.OpenQueue(ctx, 1, depth)
	if err != nil {
		return err
	}
	buf := make([]byte, size)
	done := make([]host.Completion, depth)
	for n := 0; ; n++ {
		for q.Free() > 0 {
			var op host.Op
			op.Read(nsPool, 0, size/blockSize, buf)
			if _, err := q.Submit(&op); err != nil {
				return err
			}
		}
		if _, err := q.Poll(done); err != nil {
			return err
		}
		if n == 0 {
			fmt.Println("reading")
		}
		_ = q.Wait(testutil.Patience)
	}
}

// serve is a target on TCP. It prints its address and ends with its input.
func serve() error {
	text := strings.Replace(configuration,
		"  - {transport: rdma, address: 10.0.0.1, on_unavailable: fail}\n", "", 1)
	c, err := app.Parse("child.yaml", []byte(text), nil)
	if err != nil {
		return err
	}
	s := app.NewServer(app.Options{
		Config: c, Log: slog.New(slog.DiscardHandler), Version: "isolation",
		OpenDevice: func(*config.Namespace) (backend.Device, error) {
			return ram.Open(ram.Config{Size: namespaceSize, BlockSize: blockSize})
		},
	})
	err = s.Start()
	if err == nil {
		fmt.Println(s.Addrs()[0].AddrPort)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return errors.Join(err, s.Stop(context.Background()))
}

// startChild starts such a process and returns its first line. The process is killed when ctx ends.
func startChild(ctx context.Context, mode string) (cmd *exec.Cmd, says string, err error) {
	cmd = exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childMode+"="+mode)
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, "", err
	}
	says, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, "", fmt.Errorf("the child said %q: %w", says, errors.Join(err, cmd.Wait()))
	}
	return cmd, strings.TrimSpace(says), nil
}
