package isolation

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// childAddress in the environment makes a process of this test a host that reads from there.
const childAddress = "NVMF_ISOLATION_CHILD"

// childMain keeps a full queue of reads in flight, and says so, until it is killed.
func childMain(addr string) int {
	const depth, size = 64, 128 << 10
	ctx := context.Background()
	c, err := host.Connect(ctx, host.TCP{Addr: netip.MustParseAddrPort(addr)},
		hostOptions(culpritNQN))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	q, err := c.OpenQueue(ctx, 1, depth)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	buf := make([]byte, size)
	done := make([]host.Completion, depth)
	for n := 0; ; n++ {
		for q.Free() > 0 {
			var op host.Op
			op.Read(nsPool, 0, size/blockSize, buf)
			if _, err := q.Submit(&op); err != nil {
				return 1
			}
		}
		if _, err := q.Poll(done); err != nil {
			return 1
		}
		if n == 0 {
			fmt.Println("reading")
		}
		_ = q.Wait(answerLimit)
	}
}

// startChild starts such a process and waits until it reads. It ends with ctx.
func (e *env) startChild(ctx context.Context) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childAddress+"="+e.addrs[e.link].String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "reading\n" {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("the child said %q: %w", line, err)
	}
	return cmd, nil
}
