package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
)

const (
	// askTimeout bounds the wait for the counters of the running target.
	askTimeout = 15 * time.Second
	// doctorLooks is the time between the two samples that doctor takes of the target.
	doctorLooks = 5 * time.Second
)

// loadDoctor takes two samples of a running target.
type loadDoctor struct {
	client *control.Client
	ports  portLook
	first  doctor.Sample
	err    error
}

// newLoadDoctor takes the first sample of the target at a control socket, and of the ports in a
// directory.
func newLoadDoctor(socket, ports string) *loadDoctor {
	d := &loadDoctor{client: control.NewClient(socket), ports: portLook{dir: ports}}
	d.first, d.err = d.look()
	return d
}

func (d *loadDoctor) look() (s doctor.Sample, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	defer func() { s.Time = time.Now() }()
	s.Ports = d.ports.counters(askTimeout)
	for _, ask := range []func() error{
		func() (err error) { s.Latencies, err = d.client.Latency(ctx); return err },
		func() (err error) { s.Connections, err = d.client.Connections(ctx); return err },
		func() (err error) { s.Hosts, err = d.client.Hosts(ctx); return err },
		func() (err error) { s.Subsystems, err = d.client.Subsystems(ctx); return err },
		func() (err error) { s.Namespaces, err = d.client.Namespaces(ctx); return err },
		func() (err error) { s.Reactors, err = d.client.Reactors(ctx); return err },
	} {
		err = errors.Join(err, ask())
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// findings takes another sample, at least apart after the first one.
func (d *loadDoctor) findings(apart time.Duration) []doctor.Finding {
	defer d.client.Close()
	var second doctor.Sample
	if d.err == nil {
		time.Sleep(time.Until(d.first.Time.Add(apart)))
		second, d.err = d.look()
	}
	if d.err != nil {
		return []doctor.Finding{{
			Check: "load", Severity: doctor.Note, Found: d.err.Error(),
			Why: "What the target that runs has counted is not looked at.",
			Fix: "nvmf-target doctor as root, or as a member of control.group",
		}}
	}
	list := doctor.Load(&d.first, &second)
	if list == nil {
		list = []doctor.Finding{{
			Check: "load", Severity: doctor.OK,
			Found: fmt.Sprintf("no slow commands, losses or full queues in %.0f s of the target "+
				"that runs; nvmf-target latency has what was before",
				second.Time.Sub(d.first.Time).Seconds()),
		}}
	}
	return list
}
