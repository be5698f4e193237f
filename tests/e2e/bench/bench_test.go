package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/bench"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// connection returns the settings of "nvmf-target bench" for namespace 2.
func connection(h *e2e.Env, transport string) bench.Connection {
	kind := map[string]nvme.TransportType{"tcp": nvme.TransportTCP, "rdma": nvme.TransportRDMA}
	return bench.Connection{
		Transport: transport, Address: h.Addr(kind[transport]).String(), Subsystem: e2e.SubNQN,
		HostNQN: e2e.HostNQN, NSID: 2, Timeout: testutil.Patience,
		Verbs: func(bool) verbs.Provider { return h.Fabric.Provider("host") },
	}
}

func benchSettings(rw string) bench.Settings {
	return bench.Settings{
		RW: rw, BlockSize: "4k", Depth: 8, Jobs: 2, MixRead: 50, Threads: 1, Passes: 1,
		Runtime: 100 * time.Millisecond, DestroyData: true,
	}
}

func eachBench(t *testing.T, fn func(t *testing.T, h *e2e.Env, c bench.Connection)) {
	for _, transport := range []string{"tcp", "rdma"} {
		t.Run(transport, func(t *testing.T) {
			h := e2e.New(t, e2e.Options{QueueDepth: 32})
			fn(t, h, connection(h, transport))
			h.Until("hosts to leave", func() bool { return h.Target.Sessions() == 0 })
		})
	}
}

// TestBench: each pattern and each profile does its I/O and disconnects. A run that was too short
// for this machine is repeated.
func TestBench(t *testing.T) {
	t.Parallel()
	eachBench(t, func(t *testing.T, h *e2e.Env, c bench.Connection) {
		measure := func(s bench.Settings, missing func(*bench.Report) string) {
			t.Helper()
			for s.Runtime = 20 * time.Millisecond; ; s.Runtime *= 2 {
				r := testutil.Value(bench.Measure(testutil.Context(t), c, s, "e2e", nil))(h.T)
				what := missing(r)
				if what == "" {
					return
				}
				testutil.MustTrue(t, s.Runtime.Seconds() <= 10, "%v", what)
			}
		}
		for _, rw := range bench.Patterns {
			s := benchSettings(rw)
			s.Flush = 4
			reads, writes := !strings.HasSuffix(rw, "write"), !strings.HasSuffix(rw, "read")
			measure(s, func(r *bench.Report) string {
				g := r.Runs[0].Groups[0]
				testutil.MustTrue(t, (g.Reads == nil || reads) && (g.Writes == nil || writes),
					"%s: %+v", rw, g)
				if (g.Reads == nil) == reads || (g.Writes == nil) == writes || g.Flush == nil {
					return fmt.Sprintf("%s: %+v", rw, g)
				}
				return ""
			})
		}
		for _, p := range bench.Profiles() {
			s := benchSettings("")
			s.Profile = p
			measure(s, func(r *bench.Report) string {
				for _, run := range r.Runs {
					for _, g := range run.Groups {
						if g.Reads == nil && g.Writes == nil {
							return fmt.Sprintf("%s: %s has done nothing", p, g.Name)
						}
					}
				}
				return ""
			})
		}
	})
}

// TestBenchRefusals: refusals before anything is written, and their messages.
func TestBenchRefusals(t *testing.T) {
	h := e2e.New(t, e2e.Options{})
	const overwrite = "overwrite namespace 2 of " + e2e.SubNQN
	type con = bench.Connection
	type set = bench.Settings
	for want, change := range map[string]func(*con, *set){
		overwrite:                  func(_ *con, s *set) { s.DestroyData = false },
		"blocks of 4096 bytes":     func(_ *con, s *set) { s.BlockSize = "512" },
		"takes at most 1048576":    func(_ *con, s *set) { s.BlockSize = "2m" },
		"has at most 127 commands": func(_ *con, s *set) { s.Depth = 128 },
		"namespace 9: ":            func(c *con, _ *set) { c.NSID = 9 },
		"--offset \"65m\"":         func(_ *con, s *set) { s.Offset = "65m" },
		"see --host-nqn":           func(c *con, _ *set) { c.Subsystem = e2e.OtherSub },
		"want HOST or HOST:PORT":   func(c *con, _ *set) { c.Address = ":4420" },
		"must be tcp or rdma":      func(c *con, _ *set) { c.Transport = "fc" },
	} {
		c, s := connection(h, "tcp"), benchSettings("randwrite")
		change(&c, &s)
		r, err := bench.Measure(testutil.Context(t), c, s, "e2e", nil)
		testutil.True(t, err != nil && strings.Contains(err.Error(), want) &&
			(r == nil || len(r.Runs) == 0), "%v, want %s", err, want)
	}
}

// redirected is storage that moves data from one place to another.
type redirected struct {
	backend.Device
	op       backend.Op
	from, to int64
	skip     *int // number of times to skip first
}

type redirectedChannel struct {
	backend.Channel
	d *redirected
}

func (d *redirected) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	c, err := d.Device.OpenChannel(r)
	return &redirectedChannel{c, d}, err
}

func (c *redirectedChannel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		if io.Op == c.d.op && io.Off == c.d.from {
			if *c.d.skip--; *c.d.skip < 0 {
				io.Off = c.d.to
			}
		}
	}
	return c.Channel.Submit(ios)
}

// TestBenchVerify: lost, old or misplaced data is found. Good data is accepted, by the run that has
// written it and by a later one.
func TestBenchVerify(t *testing.T) {
	t.Parallel()
	const block, elsewhere = 100, 8000
	for want, d := range map[string]*redirected{
		"": {from: -1, skip: new(int)},
		"block 100 is all zeroes: the written data is lost": {
			op: backend.OpWrite, from: block * 4096, to: elsewhere * 4096, skip: new(int),
		},
		"block 100 has the data of pass 1, not of pass 2: a lost write": {
			op: backend.OpWrite, from: block * 4096, to: elsewhere * 4096, skip: new(1),
		},
		"block 100 has the data of block 17, written in pass 1": {
			op: backend.OpRead, from: block * 4096, to: 17 * 4096, skip: new(int),
		},
	} {
		d.Device = harness.OpenRAM(t, 64<<20, 4096)
		h := e2e.New(t, e2e.Options{Devices: []backend.Device{harness.OpenRAM(t, 1<<20, 512), d}})
		for i, transport := range []string{"tcp", "rdma"} {
			if i > 0 && strings.Contains(want, "lost") {
				break // only once
			}
			s := benchSettings("randwrite")
			s.Verify, s.Passes, s.Size, s.Seed, s.Runtime = true, 2, "1m", 5, 0
			r, err := bench.Measure(testutil.Context(t), connection(h, transport), s, "e2e", nil)
			if want == "" {
				h.Must(err)
				s.RW = "read"
				c := connection(h, transport)
				_, err := bench.Measure(testutil.Context(t), c, s, "e2e", nil)
				h.Must(err)
			} else if err == nil || !strings.Contains(err.Error(), want) || r.Error != err.Error() {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
}

// TestBenchEnds: however a run ends early, its report has the work done until then.
func TestBenchEnds(t *testing.T) {
	t.Parallel() // it mostly waits
	eachBench(t, func(t *testing.T, h *e2e.Env, c bench.Connection) {
		for _, want := range []string{"interrupted", "connection closed"} {
			ctx, cancel := context.WithCancel(testutil.Context(t))
			s := benchSettings("randread")
			s.Runtime = testutil.Patience
			r, err := bench.Measure(ctx, c, s, "e2e", func(p bench.Progress) {
				switch {
				case p.Ops == 0:
				case want == "interrupted":
					cancel()
				default:
					h.Target.DisconnectHost(e2e.HostNQN, "")
				}
			})
			cancel()
			// A command between the end of the controller and the end of its queue fails.
			failed := want != "interrupted" && err != nil &&
				strings.Contains(err.Error(), nvme.CommandSequenceError.String())
			if err == nil || !failed && !strings.Contains(err.Error(), want) || r.Error == "" ||
				len(r.Runs) != 1 || r.Runs[0].Groups[0].Reads == nil {
				t.Errorf("%v, want %s; report: %+v", err, want, r)
			}
		}
	})
}

// TestBenchHungTarget: a target that stops completing commands ends a run.
func TestBenchHungTarget(t *testing.T) {
	t.Parallel() // it mostly waits
	g := backendtest.NewFaulty(harness.OpenRAM(t, 64<<20, 4096))
	h := e2e.New(t, e2e.Options{Devices: []backend.Device{harness.OpenRAM(t, 1<<20, 512), g}})
	c := connection(h, "tcp")
	c.Timeout = 2 * time.Second
	s := benchSettings("randrw")
	s.Runtime = testutil.Patience
	r, err := bench.Measure(testutil.Context(t), c, s, "e2e", func(bench.Progress) { g.Hold(nil) })
	g.Release()
	testutil.True(t, err != nil && strings.Contains(err.Error(),
		"no answer for 2s, with 8 commands") && r.Runs[0].Groups[0].Reads != nil, "%v, report: %+v",
		err, r)
}

// TestBenchKeys: keys come from files, and no output contains them.
func TestBenchKeys(t *testing.T) {
	t.Parallel()
	e2e.NeedTLS(t)
	h := e2e.New(t, e2e.Options{TCP: e2e.RequireTLS})
	key := e2e.NewKey(t, 32, auth.SHA256)
	h.Target.SetHostPolicy(e2e.HostNQN, &auth.Policy{
		Keys: []*auth.Key{key}, Hashes: []auth.Hash{auth.SHA256},
		Groups: []auth.Group{auth.FFDHE2048},
	})
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "key")
		h.Must(os.WriteFile(name, []byte(text+"\n"), 0o600))
		return name
	}
	c := connection(h, "tcp")
	for _, want := range []string{"--tls-key-file", "--dhchap-key-file", ""} {
		r, err := bench.Measure(testutil.Context(t), c, benchSettings("randread"), "e2e", nil)
		switch want {
		case "--tls-key-file":
			c.TLSKey = file(e2e.TLSKey.Reveal())
		case "--dhchap-key-file":
			c.Key = file(key.Reveal())
		default:
			h.Must(err)
			var out bytes.Buffer
			h.Must(errors.Join(r.WriteText(&out), r.WriteJSON(&out), r.WriteHTML(&out)))
			for _, k := range []string{e2e.TLSKey.Reveal(), key.Reveal()} {
				testutil.True(t, !strings.Contains(out.String(), k[14:30]),
					"a key is in the report")
			}
			continue
		}
		testutil.True(t, err != nil && strings.Contains(fmt.Sprint(err), want), "%v, want %s", err,
			want)
	}
	c.Key = key.Reveal()
	_, err := bench.Measure(testutil.Context(t), c, benchSettings("read"), "", nil)
	testutil.True(t, err != nil && !strings.Contains(err.Error(), key.Reveal()[10:30]), "%v", err)
}

// TestBenchIdentities: over TLS, bench measures a target that supports only one version of PSK
// identities.
func TestBenchIdentities(t *testing.T) {
	t.Parallel()
	e2e.NeedTLS(t)
	for version := range 2 {
		h := e2e.New(t, e2e.Options{TCP: func(c *tcp.Config) {
			e2e.RequireTLS(c)
			all := c.PSKs
			c.PSKs = func(identity []byte) []auth.TLSPSK {
				if !bytes.HasPrefix(identity, fmt.Appendf(nil, "NVMe%d", version)) {
					return nil
				}
				return all(identity)
			}
		}})
		c := connection(h, "tcp")
		c.TLSKey = filepath.Join(t.TempDir(), "key")
		h.Must(os.WriteFile(c.TLSKey, []byte(e2e.TLSKey.Reveal()), 0o600))
		_, err := bench.Measure(testutil.Context(t), c, benchSettings("randread"), "", nil)
		testutil.Equal(t, err, nil, "identity of version %d", version)
	}
}
