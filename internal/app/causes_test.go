package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// cause is a row of docs/troubleshooting.md: what slows commands down, and how that shows.
type cause struct{ name, page, query, doctor string }

// causes are the rows of the table, by name.
func causes(t *testing.T) map[string]cause {
	t.Helper()
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
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
	if len(rows) != 4 {
		t.Fatalf("%d causes in the table", len(rows))
	}
	return rows
}

// says: a text has all that a cell quotes, in this order; … stands for anything.
func says(text, cell string) bool {
	pattern := "(?s)"
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		pattern += strings.ReplaceAll(regexp.QuoteMeta(m[1]), "…", ".+") + ".*"
	}
	return regexp.MustCompile(pattern).MatchString(text)
}

var rates = regexp.MustCompile(
	"`rate\\((\\w+)(?:\\{(.+)\\})?\\[5m\\]\\) / rate\\((\\w+)(?:\\{.+\\})?\\[5m\\]\\) > (.+)`")

// holds: a query of the table, a quotient of rates that is above a bound, is true of a target whose
// counters began at 0.
func holds(t *testing.T, query string, metrics map[string]float64) bool {
	t.Helper()
	m := rates.FindStringSubmatch(query)
	if m == nil {
		t.Fatalf("not a quotient of rates: %s", query)
	}
	bound, err := strconv.ParseFloat(m[4], 64)
	if err != nil {
		t.Fatal(err)
	}
	found, above := false, false
	for name, v := range metrics {
		labels, ok := strings.CutPrefix(name, m[1]+"{")
		if !ok || !strings.Contains(labels, m[2]) {
			continue
		}
		of, ok := metrics[m[3]+"{"+labels]
		found, above = found || ok, above || v > bound*of
	}
	if !found {
		t.Errorf("no series for %s", query)
	}
	return above
}

// overview is what the page says in words, as soon as it says something.
func overview(t *testing.T, s *Server) (texts []string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		fmt.Sprintf("http://%v/events", s.web.Addr()), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testTimeout}
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	lines := bufio.NewScanner(a.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var state struct{ Findings []struct{ Text string } }
			if err := json.Unmarshal([]byte(text), &state); err != nil {
				t.Fatal(err)
			}
			for _, f := range state.Findings {
				texts = append(texts, f.Text)
			}
			if texts != nil {
				return texts
			}
		}
	}
	t.Fatal("the page says nothing: ", lines.Err())
	return nil
}

// lossy is the address of a relay to a target. Its sockets drop one of ten segments that the target
// sends, so the target sends them again.
func lossy(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	t.Cleanup(relays.Wait)
	t.Cleanup(func() { _ = l.Close() })
	relay := func(a net.Conn) {
		defer a.Close()
		// As small as those of Ethernet: a segment that Linux splits late counts as many.
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

// forward copies without splice(2), whose pipes the Go library keeps.
func forward(to io.Writer, from io.Reader) {
	_, _ = io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
}

// dropSome makes a socket drop one of ten segments before TCP sees them: what a filter of packets
// returns is how many bytes are kept.
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

// underLoad is what doctor finds in a second.
func underLoad(socket string) []doctor.Finding {
	return newLoadDoctor(socket, "/none").findings(time.Second)
}

// bottleneck is a target with a cause, and the load that shows it.
type bottleneck struct {
	name, cause     string
	namespace, host string // keys of the configuration
	entries, atOnce int    // of the queue, and how many commands use it
	lossy           bool
}

// start starts the target, and reads until the function that it returns is called.
func (b *bottleneck) start(t *testing.T) (s *Server, socket string, stop func()) {
	t.Helper()
	socket = t.TempDir() + "/control.sock"
	nqn := hostOptions("").HostNQN
	cfg, err := Parse("test.yaml", []byte(fmt.Sprintf(`
listeners: [%s]
hosts: [{nqn: %q, %s}]
subsystems: [{nqn: %q, hosts: [%q], namespaces: [{nsid: 1, %s}]}]
reactors: {count: 1, memory: 16MiB}
control: {socket: %q}
metrics: {listen: "127.0.0.1:0"}
web: {listen: "127.0.0.1:0"}
`, anyPort, nqn, b.host, testNQN, nqn, b.namespace, socket)), nil)
	if err != nil {
		t.Fatal(err)
	}
	s = newServer(t, Options{
		Config: cfg, Load: func(...config.Option) (*config.Config, error) { return cfg, nil },
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	at := s.Addrs()[0].AddrPort
	if b.lossy {
		at = lossy(t, at)
	}
	h, err := host.Connect(ctx, host.TCP{Addr: at}, hostOptions(testNQN))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	q, err := h.OpenQueue(ctx, 1, b.entries)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	ctx2, end := context.WithCancel(context.Background())
	var reads sync.WaitGroup
	reads.Go(func() {
		if err := readMany(ctx2, h, q, b.atOnce); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		end()
		reads.Wait()
	})
	t.Cleanup(stop)
	return s, socket, stop
}

// wrong is what a target with this cause says that rows do not, or the other way round.
func (b *bottleneck) wrong(t *testing.T, rows map[string]cause) (list []string) {
	t.Helper()
	s, socket, stop := b.start(t)
	row := rows[b.cause]
	if l := underLoad(socket); len(l) != 1 || !says(fmt.Sprintf("%s\n%s\n%s\n%s", l[0].Check,
		l[0].Found, l[0].Why, l[0].Fix), row.doctor) {
		list = append(list, fmt.Sprintf("doctor says %+v, want %s", l, row.doctor))
	}
	if l := overview(t, s); len(l) != 1 || !says(l[0], row.page) {
		list = append(list, fmt.Sprintf("the page says %q, want %s", l, row.page))
	}
	metrics := scrape(t, s)
	for _, r := range rows {
		if got := holds(t, r.query, metrics); got != (r == row) {
			list = append(list, fmt.Sprintf("of %s, this is %t: %s", b.cause, got, r.query))
		}
	}
	stop()
	if l := underLoad(socket); len(l) != 1 || l[0].Severity != doctor.OK {
		list = append(list, fmt.Sprintf("when it is over, doctor says %+v", l))
	}
	return list
}

// TestCauses: a slow disk, a limit, a link that loses packets, and a queue that is too small: for
// each, the page, a metric and doctor say what docs/troubleshooting.md quotes, and none of them
// says another cause. On a busy machine all commands are slow: it is tried again for a while.
func TestCauses(t *testing.T) {
	const tries = 30 * time.Second
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
			for end := time.Now().Add(tries); ; {
				var wrong []string
				t.Run("try", func(t *testing.T) { wrong = b.wrong(t, rows) })
				if t.Failed() || len(wrong) == 0 {
					return
				}
				if time.Now().After(end) {
					t.Fatal(strings.Join(wrong, "\n"))
				}
			}
		})
	}
}
