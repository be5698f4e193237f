package app

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// sequence carries out a file of testdata/sequences.
type sequence struct {
	*orchestrated
	d     *datadriven.TestData
	hosts map[string]*host.Controller
	free  uint16 // a port
	taken uint16 // a port at which another program listens
}

// sequenceSteps are the commands of sequences.
var sequenceSteps = map[string]func(*sequence) string{
	"config": func(s *sequence) string { s.configure(s.d.Input + "\n"); return "ok" },
	"edit":   func(s *sequence) string { s.configure(s.edited()); return "ok" },
	"start":  func(s *sequence) string { s.start(); return "ok" },
	"restart": func(s *sequence) string {
		s.stop()
		s.start()
		return "ok"
	},
	"check": func(s *sequence) string {
		if _, err := loader(s.file)(); err != nil {
			return err.Error()
		}
		return "valid"
	},
	"request": (*sequence).requests,
	"files":   (*sequence).managedFiles,
	"do":      (*sequence).do,
	"connect": (*sequence).connectHost,
	"stays":   (*sequence).stays,
	"ended": func(s *sequence) string {
		for _, name := range s.words() {
			testutil.Receive(s.t, name+" is disconnected", s.hosts[name].Done())
		}
		return "ok"
	},
	"ana":      (*sequence).ana,
	"read":     (*sequence).read,
	"affected": (*sequence).affected,
}

// TestSequences carries out testdata/sequences, described in its README.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		t.Parallel()                     // it mostly waits for storage
		dir, err := os.MkdirTemp("", "") // short: messages cut long paths
		testutil.Must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		s := &sequence{
			orchestrated: &orchestrated{
				t: t, file: filepath.Join(dir, "nvmf.yaml"),
				managed: filepath.Join(dir, "managed"), volumes: filepath.Join(dir, "volumes"),
			},
			hosts: map[string]*host.Controller{},
		}
		s.must(os.Mkdir(s.volumes, 0o700))
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.d = d
			step := sequenceSteps[d.Cmd]
			testutil.MustTrue(t, step != nil, "%s: unknown command %s", d.Pos, d.Cmd)
			return s.mask(step(s))
		})
	})
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
	return strings.NewReplacer("$dir", filepath.Dir(s.file), "$key", testSecret, "FREE",
		fmt.Sprint(s.free), "TAKEN", fmt.Sprint(s.taken)).Replace(text)
}

var anyTCPPort = regexp.MustCompile(`127\.0\.0\.1:[1-9]\d*`)

// mask replaces what differs from run to run.
func (s *sequence) mask(text string) string {
	text = strings.ReplaceAll(text, filepath.Dir(s.file), "$dir")
	return anyTCPPort.ReplaceAllString(strings.TrimSuffix(text, "\n"), "127.0.0.1:PORT")
}

func (s *sequence) configure(text string) {
	s.must(os.WriteFile(s.file, []byte(s.expand(text)), 0o600))
}

// edited is the file with the changes below the command: "OLD => NEW", or a line at the end.
func (s *sequence) edited() string {
	text := string(testutil.Value(os.ReadFile(s.file))(s.t))
	for line := range strings.SplitSeq(s.expand(s.d.Input), "\n") {
		before, after, replace := strings.Cut(strings.ReplaceAll(line, `\n`, "\n"), " =>")
		after = strings.TrimPrefix(after, " ")
		if !replace {
			text += line + "\n"
			continue
		}
		testutil.MustTrue(s.t, strings.Contains(text, before), "%s: no %s in the file", s.d.Pos,
			before)
		text = strings.Replace(text, before, after, 1)
	}
	return text
}

// requests makes the requests below the command: METHOD PATH BODY. Behind "| " are the keys of the
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
		if status >= 300 && !slices.Equal(before, s.files()) {
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
		return strings.TrimSpace(p.Place + " " + p.Detail + " " + p.Hint)
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
// "link NAME TARGET", "mode NAME OCTAL" and "write NAME TEXT", all below $dir.
func (s *sequence) do() string {
	at := func(name string) string { return filepath.Join(filepath.Dir(s.file), name) }
	for line := range strings.SplitSeq(s.d.Input, "\n") {
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
		}[words[0]]())
	}
	return "ok"
}

// connectHost connects a host, which stays connected: to listener 1 unless there is another one.
func (s *sequence) connectHost() string {
	var at int
	_, _ = fmt.Sscan(s.value("listener", "1"), &at)
	o := hostOptions(s.value("subsystem", testNQN))
	name := s.words()[0]
	o.HostNQN = s.value("nqn", "nqn.2026-11.io.nvmf-target:"+name)
	if s.d.HasArg("key") {
		o.Key = testutil.Value(auth.ParseKey(testSecret))(s.t)
	}
	c, err := host.Connect(s.t.Context(), host.TCP{Addr: s.server.Addrs()[at-1].AddrPort}, o)
	if err != nil {
		return err.Error()
	}
	s.t.Cleanup(c.Close)
	s.hosts[name] = c
	return "connected"
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
		b := testutil.Value(hosttest.GetLog(s.t.Context(), s.hosts[name], nvme.LogANA, nvme.NSIDAll,
			0, 1024, 0, false))(s.t)
		_, groups, err := targettest.ParseANALog(b)
		s.must(err)
		for _, g := range groups {
			out = append(out, fmt.Sprintf("%s: group %d %v", name, g.AGID, g.ANAS))
		}
	}
	return strings.Join(out, "\n")
}

// read shows the text at the beginning of each namespace of a host.
func (s *sequence) read() string {
	c := s.hosts[s.words()[0]]
	nsids := testutil.Value(hosttest.ActiveNamespaces(s.t.Context(), c))(s.t)
	l := &live{t: s.t}
	var out []string
	for _, nsid := range nsids {
		out = append(out, fmt.Sprintf("%d: %s", nsid, cmp.Or(l.first(c, nsid), "zeroes")))
	}
	return strings.Join(out, "\n")
}

// affected starts the target with the file as it is, connects a host through each listener, shows
// the plan of the changes below the command, and reloads. The hosts that the plan disconnects end,
// and no others do.
func (s *sequence) affected() string {
	before := testutil.Value(os.ReadFile(s.file))(s.t)
	next := s.edited()
	if s.server != nil {
		s.stop()
	}
	s.start()
	names := []string{"a", "b"}[:len(s.server.Addrs())]
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
