package isolation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// linesPerSecond is the number of log lines that all peers together may cause.
const linesPerSecond = 40

// lines counts the lines of the log at its usual level.
func (a *attack) lines() int {
	log := a.log.String()
	return strings.Count(log, "\n") - strings.Count(log, " level=DEBUG ")
}

// quiet returns a function that returns an error if the log has grown fast since. Time makes the
// bound larger, never smaller, so a slow machine cannot break it.
func (a *attack) quiet() func() error {
	before, began := a.lines(), time.Now()
	return func() error {
		d := time.Since(began)
		if n, most := a.lines()-before, int(d.Seconds()+2)*linesPerSecond; n > most {
			return fmt.Errorf("%d lines of log within %v", n, d)
		}
		return nil
	}
}

// refused repeatedly connects where it is not allowed, while a device stops answering: the log must
// report that device.
func refused(ctx context.Context, a *attack) error {
	const line = "device does not answer"
	defer a.hangs.begin()()
	p, err := a.join(ctx, 1)
	if err != nil {
		return err
	}
	defer p.close()
	quiet := a.quiet()
	said := strings.Count(a.log.String(), line)
	if err := p.submit(p.queues[0], 1, false, nsHung, blockSize); err != nil {
		return err
	}
	err = a.repeat(ctx, 2*time.Millisecond, func() error {
		short, cancel := context.WithTimeout(ctx, testutil.Patience)
		defer cancel()
		c, err := host.Dial(short, a.transport(a.from(1), "culprit"), hostOptions(strangerNQN))
		if err == nil {
			c.Close()
			return errors.New("a stranger was admitted")
		}
		a.takes(1)
		if strings.Count(a.log.String(), line) > said {
			a.inPlace()
		}
		return nil
	})
	return errors.Join(err, quiet())
}

// firstCome connects with the NQN of a known host before that host, and stays without enabling the
// controller. The known host must get its turn.
func firstCome(ctx context.Context, a *attack) error {
	o := hostOptions(victimNQN2)
	o.HostID = [16]byte{0xBA, 0xD}
	c, err := host.Dial(ctx, a.transport(a.from(1), "culprit"), o)
	if err != nil {
		return err
	}
	defer c.Close()
	a.takes(1)
	if err := a.settles("the known host gets its turn", a.visit); err != nil {
		return err
	}
	a.hold(ctx)
	return nil
}

// guessQueue connects I/O queues to guessed controllers with the NQN of a known host.
func guessQueue(ctx context.Context, a *attack) error {
	o := hostOptions(victimNQN)
	own := o.HostID
	for cntlid := uint16(1); cntlid < 32; cntlid++ {
		for _, id := range [][16]byte{{}, own} {
			o.HostID = id
			short, cancel := context.WithTimeout(ctx, testutil.Patience)
			q, err := host.DialQueue(short, a.transport(a.from(1), "culprit"), 2, 32, cntlid)
			if err == nil {
				cqe, e := q.Do(short, host.ConnectCommand(2, 32, &o, cntlid))
				if e == nil && cqe.Status().OK() {
					err = fmt.Errorf("a stranger's queue was admitted to controller %d, host ID %x",
						cntlid, id)
				}
				_ = q.Close()
			} else if ctx.Err() == nil {
				err = nil // rejected by the connection manager
			}
			cancel()
			if err != nil {
				return err
			}
			a.takes(1)
		}
	}
	a.hold(ctx)
	return nil
}
