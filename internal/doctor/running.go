package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/flight"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// askTimeout bounds the wait for the counters of the running target.
	askTimeout = 15 * time.Second
	// loadPeriod is the time between the two samples that Examine takes of the target.
	loadPeriod = 5 * time.Second
)

// Examine checks the machine, and the target running there: at the given socket, unless it is "".
func (m Machine) Examine(t Target, given string) []Finding {
	if given != "" {
		t.Sockets = []string{given}
	}
	_, socket, ok := m.Running(t.Sockets)
	switch {
	case !ok && given != "":
		return append(m.Run(t), Finding{
			Check: "target", Severity: Error, Found: "no target listens at " + given,
			Why: "Without a running target, slow parts cannot be found.",
			Fix: "name the socket of a running target",
		})
	case !ok:
		return m.Run(t)
	}
	watch := Begin(socket)
	defer watch.Close()
	return append(m.Run(t), watch.Findings(loadPeriod)...)
}

// Watch takes two samples of a running target.
type Watch struct {
	client *control.Client
	first  Sample
	err    error
}

// Begin takes the first sample of a target at a socket. Call Close.
func Begin(socket string) *Watch {
	w := &Watch{client: control.NewClient(socket)}
	w.first, w.err = w.Look()
	return w
}

// Look takes a sample of the target.
func (w *Watch) Look() (s Sample, err error) {
	defer func() { s.Time = time.Now() }()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c := w.client
	err = cmp.Or(control.GetLatency.Into(ctx, c, &s.Latencies),
		control.GetConnections.Into(ctx, c, &s.Connections),
		control.GetHosts.Into(ctx, c, &s.Hosts),
		control.GetSubsystems.Into(ctx, c, &s.Subsystems),
		control.GetNamespaces.Into(ctx, c, &s.Namespaces),
		control.GetReactors.Into(ctx, c, &s.Reactors),
		control.GetGroups.Into(ctx, c, &s.Groups),
		control.GetCounters.Into(ctx, c, &s.Ports),
		control.GetRefusals.Into(ctx, c, &s.Refusals))
	return s, err
}

// Findings takes another sample, at least apart after the first one.
func (w *Watch) Findings(apart time.Duration) []Finding {
	var second Sample
	if w.err == nil {
		time.Sleep(time.Until(w.first.Time.Add(apart)))
		second, w.err = w.Look()
	}
	if w.err != nil {
		return []Finding{{
			Check: "load", Severity: Note, Found: w.err.Error(),
			Why: "What the target that runs has counted is not looked at.",
			Fix: "nvmf-target doctor as root, or as a member of control.group",
		}}
	}
	list := Load(&w.first, &second)
	if list == nil {
		list = []Finding{{
			Check: "load", Severity: OK,
			Found: fmt.Sprintf("no slow commands, losses or full queues in %.0f s of the target "+
				"that runs; nvmf-target latency has what was before",
				second.Time.Sub(w.first.Time).Seconds()),
		}}
	}
	return append(append(list, handshakes(&second)...), gateways(&second)...)
}

// gateways returns the comparison of the settings of gateways.
func gateways(s *Sample) (findings []Finding) {
	for i := range s.Groups {
		g := &s.Groups[i]
		where := fmt.Sprintf("ANA group %d of the pool %s: ", g.ANAGroup, g.Pool)
		for _, what := range g.Differences {
			findings = append(findings, Finding{
				Check: "gateways", Severity: Warning, Found: where + what,
				Why: "Hosts see one disk only if its gateways agree.",
				Fix: "give all gateways the same version, lease, subsystems and namespaces, in " +
					"the same ANA groups, and each its own listeners and controller IDs",
			})
		}
		if len(g.Differences) == 0 {
			findings = append(findings, ok("gateways", "%s%d gateways, no differences known",
				where, len(g.Gateways)))
		}
	}
	return findings
}

const (
	// handshakeAge is the age up to which handshakes are findings, and mostHandshakes their number.
	handshakeAge   = 5 * time.Minute
	mostHandshakes = 16
)

// handshakes returns the peers that have lately begun RDMA connections and not confirmed them. For
// TCP see package listeners.
func handshakes(s *Sample) (findings []Finding) {
	for _, r := range s.Refusals {
		if r.Message != event.RDMANotCompleted.Message || s.Time.Sub(r.Last) > handshakeAge {
			continue
		}
		local, device := "", ""
		for _, a := range r.Attributes {
			switch a.Key {
			case "local":
				local = a.Value
			case "device":
				device = a.Value
			}
		}
		findings = append(findings, Finding{
			Check: "handshakes", Severity: Warning,
			Found: fmt.Sprintf("%s at %s: the peer begins an RDMA connection and does not confirm "+
				"it, %d times (device: %s)", r.Remote, local, r.Count, device),
			Why: "The host cannot connect there.", Fix: r.Hint,
		})
		if len(findings) == mostHandshakes {
			break
		}
	}
	return findings
}

// Close closes the connections to the target.
func (w *Watch) Close() { w.client.Close() }

// Ports returns a function that returns the counters of the ports of RDMA devices, none if its
// context ends first. Some drivers ask the firmware, which may not answer, so one goroutine at a
// time waits for it. Any goroutine may call the function. dir has the devices: PortsDir.
func Ports(dir string) func(context.Context) []observed.PortCounter {
	look := flight.Question[[]observed.PortCounter]{
		Ask: func() ([]observed.PortCounter, error) { return readPortCounters(dir), nil },
	}
	return func(ctx context.Context) []observed.PortCounter {
		list, _ := look.Answer(ctx)
		return list
	}
}

// PortsDir is the directory of the kernel with the RDMA devices of this machine.
const PortsDir = "/" + infiniband

// readPortCounters reads the counters that drivers have in addition to the specification: CNP, ECN
// and packets out of sequence are in hw_counters.
func readPortCounters(dir string) (list []observed.PortCounter) {
	names, _ := filepath.Glob(filepath.Join(dir, "*/ports/*/*counters/*"))
	for _, name := range names {
		counter := filepath.Base(name)
		n, err := strconv.ParseUint(sys.Attribute(name), 10, 64)
		if err != nil || counter == "lifespan" { // the time for which values are kept
			continue
		}
		of := filepath.Dir(name)
		port := filepath.Dir(of)
		kind := filepath.Base(of)
		if kind != "counters" && kind != "hw_counters" {
			continue
		}
		device := filepath.Base(filepath.Dir(filepath.Dir(port)))
		if kind == "hw_counters" {
			if _, err := os.Stat(filepath.Join(port, "counters", counter)); err == nil {
				continue
			}
		}
		list = append(list, observed.PortCounter{
			Device: device, Port: filepath.Base(port), Counter: counter, Value: n,
		})
	}
	return list
}
