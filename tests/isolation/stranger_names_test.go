package isolation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// linesPerSecond is how many lines of the log all peers together may cause.
const linesPerSecond = 40

// lines counts what the log has at its usual level.
func (a *attack) lines() int {
	log := a.log.String()
	return strings.Count(log, "\n") - strings.Count(log, " level=DEBUG ")
}

// quiet says that the log has grown slowly.
func (a *attack) quiet(before int, d time.Duration) error {
	if n, most := a.lines()-before, int(d.Seconds()+2)*linesPerSecond; n > most {
		return fmt.Errorf("%d lines of log within %v", n, d)
	}
	return nil
}

// refused connects where it is not allowed, again and again, while a device stops to answer: the
// log must say so.
func refused(ctx context.Context, a *attack) error {
	const line = "device does not answer"
	defer a.hangs.begin()()
	p, err := a.join(ctx, 1)
	if err != nil {
		return err
	}
	defer p.close()
	lines, began := a.lines(), time.Now()
	said := strings.Count(a.log.String(), line)
	if err := p.submit(p.queues[0], 1, false, nsHung, blockSize); err != nil {
		return err
	}
	err = a.repeat(ctx, 2*time.Millisecond, func() error {
		short, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		c, err := host.Dial(short, a.transport(a.from(1), "culprit"), hostOptions(strangerNQN))
		if err == nil {
			c.Close()
			return errors.New("a stranger was admitted")
		}
		a.takes(1)
		if strings.Count(a.log.String(), line) > said {
			a.inPlace()
		} else if time.Since(began) > answerLimit {
			return fmt.Errorf("the log does not say %q", line)
		}
		return nil
	})
	return errors.Join(err, a.quiet(lines, time.Since(began)))
}

// firstCome connects with a known host's NQN before it, and stays without enabling the controller.
// The known host must get its turn.
func firstCome(ctx context.Context, a *attack) error {
	o := hostOptions(victimNQN2)
	o.HostID = [16]byte{0xBA, 0xD}
	c, err := host.Dial(ctx, a.transport(a.from(1), "culprit"), o)
	if err != nil {
		return err
	}
	defer c.Close()
	a.takes(1)
	err = a.visit()
	for end := time.Now().Add(answerLimit); err != nil && time.Now().Before(end); err = a.visit() {
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	a.hold(ctx)
	return nil
}

// guessQueue connects I/O queues to controllers that it guesses, with a known host's NQN.
func guessQueue(ctx context.Context, a *attack) error {
	o := hostOptions(victimNQN)
	own := o.HostID
	for cntlid := uint16(1); cntlid < 32; cntlid++ {
		for _, id := range [][16]byte{{}, own} {
			o.HostID = id
			short, cancel := context.WithTimeout(ctx, answerLimit)
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
