package operation

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// cause is a row of docs/troubleshooting.md: a cause of slow commands, and its symptoms.
type cause struct{ name, page, query, doctor string }

// causes are the rows of the table, by name.
func causes(t *testing.T) map[string]cause {
	t.Helper()
	text := testutil.Value(os.ReadFile("../../docs/troubleshooting.md"))(t)
	_, text2, _ := strings.Cut(string(text), "## Slow: four causes\n")
	text2, _, _ = strings.Cut(text2, "\n## ")
	rows := map[string]cause{}
	for line := range strings.Lines(text2) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) == 4 && strings.Contains(cells[1], "`") {
			name := strings.TrimSpace(cells[0])
			rows[name] = cause{name, cells[1], cells[2], cells[3]}
		}
	}
	testutil.MustEqual(t, len(rows), 4, "causes in the table")
	return rows
}

// says reports whether a text has all quotes of a cell, in order; … stands for any text.
func says(text, cell string) bool {
	pattern := "(?s)"
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		pattern += strings.ReplaceAll(regexp.QuoteMeta(m[1]), "…", ".+") + ".*"
	}
	return regexp.MustCompile(pattern).MatchString(text)
}

var quotient = regexp.MustCompile(
	"`rate\\((\\w+)(?:\\{(.+)\\})?\\[5m\\]\\) / rate\\((\\w+)(?:\\{.+\\})?\\[5m\\]\\) > (.+)`")

// holds reports whether a query of the table, a quotient of rates above a bound, holds for a target
// with counters that began at 0.
func holds(t *testing.T, query string, metrics map[string]float64) bool {
	t.Helper()
	m := quotient.FindStringSubmatch(query)
	testutil.MustTrue(t, m != nil, "not a quotient of rates: %s", query)
	bound := testutil.Value(strconv.ParseFloat(m[4], 64))(t)
	found, above := false, false
	for name, v := range metrics {
		labels, ok := strings.CutPrefix(name, m[1]+"{")
		if !ok || !strings.Contains(labels, m[2]) {
			continue
		}
		of, ok := metrics[m[3]+"{"+labels]
		found, above = found || ok, above || v > bound*of
	}
	testutil.True(t, found, "no series for %s", query)
	return above
}

// overview waits until a cell of the page has this text, and returns the texts of all cells.
func overview(t *testing.T, s *operated, cell string) (texts []string) {
	t.Helper()
	r := testutil.Value(http.NewRequestWithContext(testutil.Context(t), http.MethodGet,
		"http://"+s.page+"/events", nil))(t)
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := c.Do(r)
	testutil.Must(t, err)
	defer a.Body.Close()
	lines := bufio.NewScanner(a.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var state struct{ Findings []struct{ Text string } }
		testutil.Must(t, json.Unmarshal([]byte(text), &state))
		texts = nil
		for _, f := range state.Findings {
			texts = append(texts, f.Text)
		}
		if slices.ContainsFunc(texts, func(text string) bool { return says(text, cell) }) {
			return texts
		}
	}
	t.Fatalf("the page says %q, want %s: %v", texts, cell, lines.Err())
	return nil
}

// lossy returns the address of a relay to a target. Its sockets drop one of ten segments sent by
// the target, so the target sends them again.
func lossy(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	l := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	var relays sync.WaitGroup
	t.Cleanup(relays.Wait)
	t.Cleanup(func() { _ = l.Close() })
	relay := func(a net.Conn) {
		defer a.Close()
		// As small as on Ethernet: a segment that Linux splits late counts as many.
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			return setsockopt(c, func(fd int) error {
				return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1448)
			})
		}}
		b, err := d.Dial("tcp", to.String())
		if err != nil {
			t.Error(err)
			return
		}
		defer b.Close()
		if err := dropSome(b.(*net.TCPConn)); err != nil {
			t.Error(err)
			return
		}
		relays.Go(func() {
			forward(b, a)
			_ = b.(*net.TCPConn).CloseWrite()
		})
		forward(a, b)
	}
	relays.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { relay(a) })
		}
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// forward copies without splice(2), because the Go library keeps its pipes.
func forward(to io.Writer, from io.Reader) {
	_, _ = io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
}

// dropSome makes a socket drop one of ten segments before TCP sees them. The result of a packet
// filter is the number of bytes to keep.
func dropSome(c *net.TCPConn) error {
	const random = 0xfffff000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: random},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, Jf: 1, K: 1 << 32 / 10},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return setsockopt(raw, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	})
}

func setsockopt(c syscall.RawConn, set func(fd int) error) (err error) {
	if err2 := c.Control(func(fd uintptr) { err = set(int(fd)) }); err2 != nil {
		return err2
	}
	return err
}

// readMany reads blocks of 4 KiB of namespace 1, some at a time, until ctx ends.
func readMany(ctx context.Context, h *host.Controller, q *host.Queue, atOnce int) error {
	data, err := h.Map(4096)
	if err != nil {
		return err
	}
	ops, done := make([]host.Op, atOnce), make([]host.Completion, atOnce)
	for ctx.Err() == nil {
		for i := range ops {
			ops[i].Read(1, 0, 8, data)
			if _, err := q.Submit(&ops[i]); err != nil {
				return err
			}
		}
		for q.Outstanding() > 0 {
			if _, err := q.Poll(done); err != nil {
				return err
			}
			_ = q.Wait(time.Millisecond)
		}
	}
	return nil
}

// bottleneck is a target with a cause, and the load that shows it.
type bottleneck struct {
	name, cause     string
	namespace, host string // keys of the configuration
	entries, atOnce int    // of the queue, and commands that use it
	lossy           bool
}

// start starts the target, and reads until the returned function is called.
func (b *bottleneck) start(t *testing.T) (s *operated, stop func()) {
	t.Helper()
	s = start(t, fmt.Sprintf("hosts: [{nqn: %q, %s}]\n", hostNQN, b.host)+subsystem(b.namespace),
		harness.Options{})
	to := s.TCP()
	if b.lossy {
		to.Addr = lossy(t, to.Addr)
	}
	h := s.Connect(to, options())
	q := s.Open(h, 1, b.entries)
	ctx, end := context.WithCancel(context.Background())
	var reads sync.WaitGroup
	reads.Go(func() { testutil.Check(t, readMany(ctx, h, q, b.atOnce)) })
	stop = sync.OnceFunc(func() {
		end()
		reads.Wait()
	})
	t.Cleanup(stop)
	return s, stop
}

// test waits until doctor, the page and a metric show the cause, and checks that none of them shows
// another one.
func (b *bottleneck) test(t *testing.T, rows map[string]cause) {
	s, stop := b.start(t)
	row := rows[b.cause]
	// On a busy machine commands are slow, and TCP resends packets that were not acknowledged in
	// time, for this reason, too.
	others := slices.DeleteFunc(slices.Collect(maps.Values(rows)), func(r cause) bool {
		return r == row || !testutil.Soaking() && !strings.Contains(r.query, "nearly_full")
	})
	only := func(who string, texts []string, cell func(cause) string) {
		t.Helper()
		for _, text := range texts {
			for _, r := range others {
				testutil.True(t, !says(text, cell(r)), "of %s, %s says %q", b.cause, who, text)
			}
		}
		testutil.True(t, !testutil.Soaking() || len(texts) == 1, "of %s, %s says %q", b.cause, who,
			texts)
	}
	d := doctor.Begin(s.socket)
	defer d.Close()
	first := testutil.Value(d.Look())(t)
	var texts []string
	testutil.Until(t, "doctor says "+row.doctor, func() bool {
		now := testutil.Value(d.Look())(t)
		texts = nil
		for _, f := range doctor.Load(&first, &now) {
			texts = append(texts, strings.Join([]string{f.Check, f.Found, f.Why, f.Fix}, "\n"))
		}
		return slices.ContainsFunc(texts, func(text string) bool { return says(text, row.doctor) })
	})
	only("doctor", texts, func(r cause) string { return r.doctor })
	only("the page", overview(t, s, row.page), func(r cause) string { return r.page })
	var metrics map[string]float64
	testutil.Until(t, row.query, func() bool {
		metrics = s.scrape()
		return holds(t, row.query, metrics)
	})
	for _, r := range others {
		testutil.True(t, !holds(t, r.query, metrics), "of %s, this is true: %s", b.cause, r.query)
	}
	stop()
	testutil.Until(t, "when it is over, doctor finds nothing", func() bool {
		d := doctor.Begin(s.socket)
		defer d.Close()
		l := d.Findings(time.Millisecond)
		return len(l) == 1 && l[0].Severity == doctor.OK
	})
}

// TestCauses: a slow disk, a limit, a lossy link, and a queue that is too small. For each, the
// page, a metric and doctor show the quotes of docs/troubleshooting.md, and none of them shows
// another cause: never a queue that is too small, and on a quiet machine no other either.
func TestCauses(t *testing.T) {
	if !testutil.Soaking() {
		t.Parallel()
	}
	rows := causes(t)
	const ram = "backend: ram, size: 16MiB"
	const limits = "limits: {iops: 100, burst: 10ms}"
	for _, b := range []bottleneck{
		{
			name: "disk", cause: "a slow disk", entries: 32, atOnce: 10,
			namespace: "backend: delay, latency: 50ms, of: {" + ram + "}",
		},
		{
			name: "limit of the namespace", cause: "a limit", entries: 32, atOnce: 10,
			namespace: ram + ", " + limits,
		},
		{
			name: "limit of the host", cause: "a limit", entries: 32, atOnce: 10,
			namespace: ram, host: limits,
		},
		{
			name: "link", cause: "a link that loses packets", entries: 32, atOnce: 4,
			namespace: ram, lossy: true,
		},
		{
			name: "queue", cause: "a queue that is too small", entries: 4, atOnce: 3,
			namespace: "backend: delay, latency: 200us, of: {" + ram + "}",
		},
	} {
		t.Run(b.name, func(t *testing.T) {
			if !testutil.Soaking() {
				t.Parallel()
			}
			b.test(t, rows)
		})
	}
}
