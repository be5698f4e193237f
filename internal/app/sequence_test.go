package app_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// sequence carries out a file of testdata/sequences.
type sequence struct {
	*orchestrated
	d      *datadriven.TestData
	record storage       // of the gateways that share
	other  *group.Shared // another one of them
	hosts  map[string]*connected
	free   uint16                  // a port
	taken  uint16                  // a port at which another program listens
	held   map[string]net.Listener // addresses of other programs
}

// connected is a host, with its address of the target and the events that it gets.
type connected struct {
	*host.Controller
	at     netip.AddrPort
	events <-chan nvme.AsyncEvent
}

// sequenceSteps are the commands of sequences.
var sequenceSteps = map[string]func(*sequence) string{
	"config": func(s *sequence) string { s.configure(s.d.Input + "\n"); return "ok" },
	"edit":   func(s *sequence) string { s.configure(s.edited()); return "ok" },
	"start":  (*sequence).begin,
	"stop":   func(s *sequence) string { s.Stop(); return "ok" },
	"restart": func(s *sequence) string {
		s.Stop()
		return s.begin()
	},
	"check":   func(s *sequence) string { text, _ := s.check(); return text },
	"each":    (*sequence).each,
	"request": (*sequence).requests,
	"group": func(s *sequence) string {
		return fmt.Sprint(testutil.Err(s.Engine().ApplyGroup([]byte(s.d.Input), false)))
	},
	"share":  (*sequence).share,
	"store":  (*sequence).store,
	"shared": (*sequence).shared,
	"broken": func(s *sequence) string {
		s.record.fails.Store(s.d.HasArg("on"))
		return "ok"
	},
	"files":   (*sequence).managedFiles,
	"do":      (*sequence).do,
	"connect": (*sequence).connectHost,
	"depth": func(s *sequence) string {
		return fmt.Sprint(s.hosts[s.words()[0]].CAP().MQES() + 1)
	},
	"stays": (*sequence).stays,
	"ended": func(s *sequence) string {
		for _, name := range s.words() {
			testutil.Receive(s.t, name+" is disconnected", s.hosts[name].Done())
		}
		return "ok"
	},
	"ana":      (*sequence).ana,
	"read":     (*sequence).read,
	"affected": (*sequence).affected,
	"network":  (*sequence).setNetwork,
	"ports":    func(s *sequence) string { return ports(s.Harness) },
	"discover": (*sequence).discover,
	"event":    (*sequence).event,
	"io":       (*sequence).io,
	"log":      func(s *sequence) string { return s.counted(s.log.String()) },
	"served":   func(s *sequence) string { return s.counted(s.hears(readServed(s.t, s.Harness))) },
	"answers": func(s *sequence) string {
		socket := filepath.Join(filepath.Dir(s.file), "control.sock")
		return s.counted(s.hears(readControl(s.t, socket)))
	},
	"metrics": (*sequence).scraped,
	"dumpable": func(s *sequence) string {
		return fmt.Sprint(testutil.Value(unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0))(s.t))
	},
	"promises": (*sequence).promises,
}

// needLimitedFiles skips a test where a file can have 100 TiB.
func needLimitedFiles(t *testing.T, dir string) {
	t.Helper()
	f := testutil.Value(os.CreateTemp(dir, "large"))(t)
	defer f.Close()
	if f.Truncate(100<<40) == nil {
		t.Skipf("needs a file system that refuses files of 100 TiB, such as ext4, in %s",
			os.TempDir())
	}
}

// TestSequences carries out testdata/sequences, described in its README.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		if strings.HasSuffix(path, "tls.txt") {
			needTLS(t)
		}
		t.Parallel()                     // it mostly waits for storage
		dir, err := os.MkdirTemp("", "") // short: messages cut long paths
		testutil.Must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if strings.HasSuffix(path, "large_files.txt") {
			needLimitedFiles(t, dir)
		}
		s := &sequence{
			orchestrated: &orchestrated{
				t: t, file: filepath.Join(dir, "nvmf.yaml"),
				managed: filepath.Join(dir, "managed"), volumes: filepath.Join(dir, "volumes"),
				log: new(testutil.Log),
			},
			hosts: map[string]*connected{}, held: map[string]net.Listener{},
		}
		s.must(os.Mkdir(s.volumes, 0o700))
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.d = d
			step := sequenceSteps[d.Cmd]
			testutil.MustTrue(t, step != nil, "%s: unknown command %s", d.Pos, d.Cmd)
			out := s.mask(step(s))
			if d.HasArg("until") {
				out = s.until(out, func() string { return s.mask(step(s)) })
			}
			return out
		})
		for _, text := range append(testSecrets, testTLSKeys...) {
			testutil.True(t, shows(t, text, text), "the test finds no key")
			testutil.True(t, !shows(t, s.log.String()+s.said.String(), text), "a key is shown")
		}
	})
}

// hears keeps a text in which no key may be shown.
func (s *sequence) hears(text string) string {
	s.said.WriteString(text)
	return text
}

// until repeats a command until it prints the text below it, or often the same text if that is to
// be written.
func (s *sequence) until(out string, again func() string) string {
	s.t.Helper()
	same := 0
	testutil.Until(s.t, s.d.Pos+": "+s.d.Expected, func() bool {
		if !s.d.Rewrite && out == strings.TrimSuffix(s.d.Expected, "\n") {
			return true
		}
		last := out
		<-time.After(5 * time.Millisecond) // a look takes as long
		out = again()
		if same++; out != last {
			same = 0
			if !s.d.Rewrite {
				s.t.Logf("%s: %s", s.d.Pos, out)
			}
		}
		return s.d.Rewrite && same == 200
	})
	return out
}

// words are the arguments of the command that have no value.
func (s *sequence) words() (list []string) {
	for _, a := range s.d.CmdArgs {
		if len(a.Vals) == 0 {
			list = append(list, a.Key)
		}
	}
	return list
}

// value is that of an argument, or def without it.
func (s *sequence) value(key, def string) string {
	for _, a := range s.d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return strings.Join(a.Vals, ",")
		}
	}
	return def
}

// expand replaces $dir and $key in a text of a sequence, FREE by a free port, and TAKEN by a port
// that is in use.
func (s *sequence) expand(text string) string {
	if strings.Contains(text, "FREE") && s.free == 0 {
		s.free = testutil.FreePort(s.t)
	}
	if strings.Contains(text, "TAKEN") && s.taken == 0 {
		s.taken = listen(s.t, "127.0.0.1:0").AddrPort().Port()
	}
	return strings.NewReplacer("$dir", filepath.Dir(s.file),
		"$key2", testSecrets[1], "$key3", testSecrets[2], "$key", testSecret,
		"$tls2", testTLSKeys[1], "$tls3", testTLSKeys[2], "$tls", testTLSKeys[0],
		"FREE", fmt.Sprint(s.free), "TAKEN", fmt.Sprint(s.taken)).Replace(text)
}

var (
	anyTCPPort = regexp.MustCompile(`127\.0\.0\.1:[1-9]\d*`)
	anyDigest  = regexp.MustCompile(`hidden-[0-9a-f]+`)
	anyRoom    = regexp.MustCompile(`has \d+ free`)
)

// mask replaces text that differs from run to run.
func (s *sequence) mask(text string) string {
	text = strings.ReplaceAll(text, filepath.Dir(s.file), "$dir")
	if s.free != 0 {
		text = strings.ReplaceAll(text, fmt.Sprint(":", s.free), ":PORT")
	}
	text = strings.ReplaceAll(text, testSecrets[1], "$key2") // as the name of a host
	text = anyDigest.ReplaceAllString(text, "hidden-DIGEST")
	text = anyRoom.ReplaceAllString(text, "has ROOM free")
	return anyTCPPort.ReplaceAllString(strings.TrimSuffix(text, "\n"), "127.0.0.1:PORT")
}

func (s *sequence) configure(text string) {
	s.must(os.WriteFile(s.file, []byte(s.expand(text)), 0o600))
}

// edited is the file with the changes below the command.
func (s *sequence) edited() string {
	text := string(testutil.Value(os.ReadFile(s.file))(s.t))
	for line := range strings.SplitSeq(s.expand(s.d.Input), "\n") {
		text = s.change(text, line)
	}
	return text
}

// change makes a change of a text: "OLD => NEW", "$ NAME=VALUE" for a variable, or a line at the
// end.
func (s *sequence) change(text, line string) string {
	if variable, ok := strings.CutPrefix(line, "$ "); ok {
		s.environ = append(s.environ, variable)
		return text
	}
	before, after, replace := strings.Cut(strings.ReplaceAll(line, `\n`, "\n"), " =>")
	after = strings.TrimPrefix(after, " ")
	if !replace {
		return text + line + "\n"
	}
	testutil.MustTrue(s.t, strings.Contains(text, before), "%s: no %s in the file", s.d.Pos, before)
	return strings.Replace(text, before, after, 1)
}

// check checks the file, on this machine.
func (s *sequence) check() (text string, err error) {
	var out strings.Builder
	if err := check.File(s.file, s.environ, &out); err != nil {
		return s.hears(err.Error()), err
	}
	return strings.TrimSuffix(s.hears(out.String()), "\n"), nil
}

// each checks the file with each line of changes by itself, and with serve also starts a target
// with it, which fails for the same reason. A line is cut at " ;; ".
func (s *sequence) each() string {
	before := testutil.Value(os.ReadFile(s.file))(s.t)
	var out strings.Builder
	for line := range strings.SplitSeq(s.d.Input, "\n") {
		text := string(before)
		for one := range strings.SplitSeq(s.expand(line), " ;; ") {
			text = s.change(text, one)
		}
		s.must(os.WriteFile(s.file, []byte(text), 0o600))
		found, err := s.check()
		if s.d.HasArg("serve") {
			served := s.begin()
			_, a, _ := strings.Cut(found, "subsystems[0]")
			_, b, _ := strings.Cut(served, "subsystems[0]")
			testutil.True(s.t, (err == nil) == (served == "ok") && (err == nil || a == b),
				"%s: %s: check says %s, and a start %s", s.d.Pos, line, found, served)
			if served == "ok" {
				s.Stop()
			}
		}
		s.environ = nil
		out.WriteString(line + "\n    " + strings.ReplaceAll(found, "\n", "\n    ") + "\n")
	}
	s.must(os.WriteFile(s.file, before, 0o600))
	return out.String()
}

// requests makes the requests below the command: METHOD PATH BODY. After "| " are the keys of the
// answer to show. After each of them a restart would change nothing, and a request that is refused
// has changed no file.
func (s *sequence) requests() string {
	var out strings.Builder
	for line := range strings.SplitSeq(s.d.Input, "\n") {
		line, keys, _ := strings.Cut(line, " | ")
		method, rest, _ := strings.Cut(line, " ")
		path, body, _ := strings.Cut(rest, " ")
		path = strings.ReplaceAll(path, "LONG", strings.Repeat("h", 224))
		before := s.files()
		status, header, text := s.request(method+" "+path, s.expand(body))
		if status >= 300 && !s.d.HasArg("applies") && !slices.Equal(before, s.files()) {
			s.t.Errorf("%s: %s was refused, and has changed a file", s.d.Pos, line)
		}
		if !s.d.HasArg("pending") {
			s.same()
		}
		fmt.Fprintf(&out, "%d %s\n", status, answered(text, strings.Fields(keys)))
		if status == 405 {
			fmt.Fprintf(&out, "    Allow: %s\n", header.Get("Allow"))
		}
	}
	return out.String()
}

// answered is an answer in short: the changes of a plan, a problem, or the keys of an object.
func answered(text string, keys []string) string {
	var plan control.Plan
	var p control.Problem
	var object map[string]any
	switch {
	case strings.HasPrefix(text, `{"changes":`) && json.Unmarshal([]byte(text), &plan) == nil:
		return planned(plan)
	case strings.HasPrefix(text, `{"title":`) && json.Unmarshal([]byte(text), &p) == nil:
		lines := []string{strings.TrimSpace(p.Place + " " + p.Detail + " " + p.Hint)}
		for _, more := range p.More {
			lines = append(lines, strings.TrimSpace(more.Place+" "+more.Detail+" "+more.Hint))
		}
		return strings.Join(lines, "\n    ")
	case len(keys) > 0 && strings.HasPrefix(text, "["):
		var list []json.RawMessage
		if json.Unmarshal([]byte(text), &list) != nil {
			return text
		}
		var lines []string
		for _, one := range list {
			lines = append(lines, answered(string(one), keys))
		}
		return strings.Join(lines, "\n    ")
	case len(keys) == 0 || json.Unmarshal([]byte(text), &object) != nil:
		return strings.TrimSpace(text)
	}
	var words []string
	for _, key := range keys {
		v, _ := json.Marshal(object[key])
		words = append(words, key+"="+string(v))
	}
	return strings.Join(words, " ")
}

func planned(p control.Plan) string {
	if len(p.Changes) == 0 {
		return "no changes"
	}
	var out []string
	for _, c := range p.Changes {
		text := c.Text
		for _, a := range c.Affected {
			text += fmt.Sprintf("; %s %s, controllers: %d", a.Host, a.Effect, a.Controllers)
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n    ")
}

// managedFiles shows the managed directory.
func (s *sequence) managedFiles() string {
	info := testutil.Value(os.Stat(s.managed))(s.t)
	return strings.Join(append([]string{info.Mode().String()}, s.files()...), "\n")
}

// do changes files: "file NAME TEXT" (of 1 MiB), "mkdir NAME", "remove NAME", "rename NAME NEW",
// "link NAME TARGET", "mode NAME OCTAL" and "write NAME TEXT", all below $dir. "hold ADDRESS" and
// "free ADDRESS" are another program that listens there.
func (s *sequence) do() string {
	at := func(name string) string { return filepath.Join(filepath.Dir(s.file), name) }
	for line := range strings.SplitSeq(s.expand(s.d.Input), "\n") {
		words := append(strings.SplitN(line, " ", 3), "", "")
		name, arg := at(words[1]), words[2]
		var mode os.FileMode
		_, _ = fmt.Sscanf(arg, "%o", &mode)
		s.must(map[string]func() error{
			"file": func() error {
				rest := make([]byte, 1<<20-len(arg))
				return os.WriteFile(name, append([]byte(arg), rest...), 0o600)
			},
			"mkdir":  func() error { return os.Mkdir(name, 0o700) },
			"remove": func() error { return os.RemoveAll(name) },
			"rename": func() error { return os.Rename(name, at(arg)) },
			"link":   func() error { return os.Symlink(at(arg), name) },
			"mode":   func() error { return os.Chmod(name, mode) },
			"write":  func() error { return os.WriteFile(name, []byte(arg+"\n"), 0o600) },
			"fifo":   func() error { return unix.Mkfifo(name, 0o600) },
			"size": func() error {
				n, err := strconv.ParseInt(arg, 10, 64)
				return errors.Join(err, os.WriteFile(name, nil, 0o600), os.Truncate(name, n))
			},
			"hold": func() error {
				s.held[words[1]] = listen(s.t, words[1])
				return nil
			},
			"free": func() error { return s.held[words[1]].Close() },
		}[words[0]]())
	}
	return "ok"
}

// listener returns the address of a listener, by default of the first one.
func (s *sequence) listener() netip.AddrPort {
	var at int
	_, _ = fmt.Sscan(s.value("listener", "1"), &at)
	return s.Addrs()[at-1].AddrPort
}

// which returns the key whose number an argument has.
func (s *sequence) which(arg string, keys []string) string {
	n := 1
	_, _ = fmt.Sscan(s.value(arg, "1"), &n)
	return keys[n-1]
}

func (s *sequence) transport(at netip.AddrPort) host.TCP {
	tr := host.TCP{Addr: at, HeaderDigest: s.d.HasArg("digest")}
	if s.d.HasArg("tls") {
		k := testutil.Value(auth.ParseTLSKey(s.which("tls", testTLSKeys)))(s.t)
		tr.PSK = func(hostNQN, subNQN string) (*auth.TLSPSK, error) {
			psks, err := k.PSKs(hostNQN, subNQN)
			return &psks[len(psks)-1], err // with an identity that does not reveal the key
		}
	}
	return tr
}

// connectHost connects a host, which stays connected: to listener 1 unless there is another one, or
// the address that another host has used.
func (s *sequence) connectHost() string {
	at := s.listener()
	if like := s.hosts[s.value("like", "")]; like != nil {
		at = like.at
	}
	if ip := s.value("ip", ""); ip != "" {
		at = netip.AddrPortFrom(netip.MustParseAddr(ip), at.Port())
	}
	o := hostOptions(s.expand(s.value("subsystem", testNQN)))
	name := s.words()[0]
	o.HostNQN = s.expand(s.value("nqn", "nqn.2026-11.io.nvmf-target:"+name))
	if s.d.HasArg("key") {
		o.Key = testutil.Value(auth.ParseKey(s.which("key", testSecrets)))(s.t)
	}
	if s.d.HasArg("controller-key") {
		o.ControllerKey = testutil.Value(auth.ParseKey(s.which("controller-key", testSecrets)))(s.t)
	}
	c, err := host.Connect(s.t.Context(), s.transport(at), o)
	switch {
	case err != nil && (s.d.HasArg("tls") || s.d.HasArg("plain")): // OpenSSL has the reason
		return "refused"
	case err != nil:
		return err.Error()
	}
	s.t.Cleanup(c.Close)
	s.hosts[name] = &connected{Controller: c, at: at}
	if s.d.HasArg("events") {
		s.hosts[name].events = testutil.Value(hosttest.Events(s.t.Context(), c,
			nvme.EventNamespaceChanged))(s.t)
	}
	return "connected"
}

// event waits for the next event of a host, and reads the log that it names.
func (s *sequence) event() string {
	h := s.hosts[s.words()[0]]
	e := testutil.Receive(s.t, s.d.Pos+": an event", h.events)
	_, err := hosttest.GetLog(s.t.Context(), h.Controller, nvme.LogChangedNamespaces, nvme.NSIDAll,
		0, 4096, 0, false)
	s.must(err)
	return fmt.Sprintf("%#x", uint32(e))
}

// begin starts the target, and returns the error if that fails. No host was let in before.
func (s *sequence) begin() string {
	if err := s.tryStart(); err != nil {
		text := err.Error()
		testutil.Equal(s.t, len(s.Addrs()), 0, "%s: listeners", s.d.Pos)
		s.Stop()
		return text
	}
	return "ok"
}

// setNetwork gives the machine addresses. Listeners follow them at once, and not by trying.
func (s *sequence) setNetwork() string {
	if s.network == nil {
		s.network = &netiftest.Network{}
	}
	s.network.Set(strings.FieldsFunc(s.d.Input, func(r rune) bool { return r == '\n' })...)
	return "ok"
}

// discover shows the ports and addresses that hosts find at a listener, by default the first one.
func (s *sequence) discover() string {
	o := hostOptions(nvme.DiscoveryNQN)
	c, err := host.Connect(s.t.Context(), s.transport(s.listener()), o)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_, entries, err := hosttest.Discover(s.t.Context(), c)
	s.must(err)
	var out []string
	for _, e := range entries {
		if e.SUBTYPE == nvme.SubsystemNVM {
			port := fmt.Sprint(e.PORTID, " ", nvme.Text(e.TRADDR[:]))
			if e.TREQ&nvme.TREQRequired != 0 {
				port += " only with TLS"
			}
			out = append(out, port)
		}
	}
	return strings.Join(out, "\n")
}

// io carries out commands of a host: "read NSID LBA" and "write NSID LBA", of a block of 512 bytes,
// and "flush NSID".
func (s *sequence) io() string {
	c := s.hosts[s.words()[0]].Controller
	q := testutil.Value(c.OpenQueue(s.t.Context(), 1, 16))(s.t)
	defer q.Close()
	data := testutil.Value(c.Map(512))(s.t)
	var out []string
	for line := range strings.SplitSeq(s.d.Input, "\n") {
		var what string
		var nsid uint32
		var lba uint64
		_, _ = fmt.Sscan(line, &what, &nsid, &lba)
		var err error
		switch what {
		case "read":
			err = hosttest.Read(s.t.Context(), q, nsid, lba, 1, data)
		case "write":
			err = hosttest.Write(s.t.Context(), q, nsid, lba, 1, data, 0)
		case "flush":
			err = hosttest.Flush(s.t.Context(), q, nsid)
		}
		out = append(out, fmt.Sprint(err))
	}
	return strings.Join(out, "\n")
}

// counted counts the texts below the command, one in a line, or reports with has whether they are
// there.
func (s *sequence) counted(in string) string {
	var out []string
	for line := range strings.SplitSeq(s.expand(s.d.Input), "\n") {
		if s.d.HasArg("has") {
			out = append(out, fmt.Sprint(strings.Contains(in, line)))
		} else {
			out = append(out, fmt.Sprint(strings.Count(in, line)))
		}
	}
	return strings.Join(out, "\n")
}

// scraped shows the metrics with these beginnings.
func (s *sequence) scraped() string {
	if s.Metrics() == nil {
		return "none"
	}
	var out []string
	text := scraped(s.t, s.Harness)
	for line := range strings.SplitSeq(s.d.Input, "\n") {
		for found := range strings.Lines(text) {
			if strings.HasPrefix(found, "nvmf_target_"+line) {
				out = append(out, strings.TrimPrefix(strings.TrimSpace(found), "nvmf_target_"))
			}
		}
	}
	return strings.Join(out, "\n")
}

// promises stores reservations of namespaces of testNQN in the state of a stopped target, or shows
// the namespaces that have some.
func (s *sequence) promises() string {
	if len(s.words()) == 0 {
		var out []string
		for nsid := range uint32(10) {
			if s.State().Reservations.Load(testNQN, nsid) != nil {
				out = append(out, fmt.Sprint(nsid))
			}
		}
		return strings.Join(out, " ")
	}
	for _, text := range s.words() {
		var nsid uint32
		_, _ = fmt.Sscan(text, &nsid)
		promised(s.t, filepath.Dir(s.file), nsid)
	}
	return "ok"
}

// stays checks that hosts are connected.
func (s *sequence) stays() string {
	for _, name := range s.words() {
		_, err := s.hosts[name].IdentifyController(s.t.Context())
		testutil.Equal(s.t, err, nil, "%s: %s", s.d.Pos, name)
	}
	return "ok"
}

// ana shows the ANA states of groups as hosts see them.
func (s *sequence) ana() string {
	var out []string
	for _, name := range s.words() {
		b := testutil.Value(hosttest.GetLog(s.t.Context(), s.hosts[name].Controller, nvme.LogANA,
			nvme.NSIDAll, 0, 1024, 0, false))(s.t)
		_, groups, err := targettest.ParseANALog(b)
		s.must(err)
		for _, g := range groups {
			out = append(out, fmt.Sprintf("%s: group %d %v", name, g.AGID, g.ANAS))
		}
	}
	return strings.Join(out, "\n")
}

// read shows the text at the beginning of each namespace of a host, and its size if it may change.
func (s *sequence) read() string {
	c := s.hosts[s.words()[0]].Controller
	nsids := testutil.Value(hosttest.ActiveNamespaces(s.t.Context(), c))(s.t)
	l := &live{t: s.t}
	var out []string
	for _, nsid := range nsids {
		out = append(out, fmt.Sprintf("%d: %s", nsid, cmp.Or(l.first(c, nsid), "zeroes")))
		if s.d.HasArg("sizes") {
			id := testutil.Value(c.IdentifyNamespace(s.t.Context(), nsid))(s.t)
			out[len(out)-1] += fmt.Sprintf(", %d blocks", id.NSZE)
		}
	}
	return strings.Join(out, "\n")
}

// affected starts the target with the file as it is, connects a host through each listener, shows
// the plan of the changes below the command, and reloads. The hosts that the plan disconnects end,
// and no others do.
func (s *sequence) affected() string {
	before := testutil.Value(os.ReadFile(s.file))(s.t)
	next := s.edited()
	if s.Harness != nil {
		s.Stop()
	}
	testutil.MustEqual(s.t, s.begin(), "ok", "%s", s.d.Pos)
	names := []string{"a", "b"}[:len(s.Addrs())]
	for i, name := range names {
		s.d.CmdArgs = append(s.d.CmdArgs[:0:0], datadriven.CmdArg{Key: name},
			datadriven.CmdArg{Key: "listener", Vals: []string{fmt.Sprint(i + 1)}},
			datadriven.CmdArg{Key: "key"})
		testutil.MustEqual(s.t, s.connectHost(), "connected", "%s: %s", s.d.Pos, name)
	}
	s.configure(next)
	_, _, text := s.request("GET /v1/plan", "")
	status, _, applied := s.request("POST /v1/reload", "")
	testutil.True(s.t, status == 200, "%s: %s", s.d.Pos, applied)
	out := answered(text, nil)
	for _, name := range names {
		s.d.CmdArgs = []datadriven.CmdArg{{Key: name}}
		if strings.Contains(out, "; "+s.hosts[name].Options().HostNQN+" "+control.Disconnects) {
			testutil.Receive(s.t, name+" is disconnected", s.hosts[name].Done())
		} else {
			s.stays()
		}
	}
	s.must(os.WriteFile(s.file, before, 0o600))
	return out
}
