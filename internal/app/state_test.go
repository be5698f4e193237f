package app

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// reloader returns a function that loads a state file after a restart.
func reloader(t *testing.T, file string) func() *state {
	var last *state
	t.Cleanup(func() { last.close() })
	return func() *state {
		t.Helper()
		if last != nil {
			last.close()
		}
		var err error
		if last, err = loadState(file, quiet()); err != nil {
			t.Fatal(err)
		}
		return last
	}
}

func TestState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "state")
	load := reloader(t, file)
	ports := func(s *state, want map[string]uint16) {
		t.Helper()
		var names []string
		for name := range want {
			names = append(names, name)
		}
		slices.Sort(names)
		got := s.ports(names)
		for name, id := range want {
			if got[name] != id {
				t.Errorf("port ID of %s is %d, want %d", name, got[name], id)
			}
		}
	}
	s := load()
	ports(s, map[string]uint16{"a": 1, "b": 2, "c": 3})
	ports(s, map[string]uint16{"c": 3})
	ports(load(), map[string]uint16{"b": 2, "d": 4})
	first := load().generation()
	if next := load().generation(); first != 1 || next <= first+1000 {
		t.Errorf("first generation %d, %d after a restart", first, next)
	}
	list, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(list) != 1 {
		t.Errorf("files left: %v, %v", list, err)
	}
}

// TestProtected: which namespaces are write protected outlives a restart. What cannot be written
// does not hold.
func TestProtected(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	load := reloader(t, filepath.Join(dir, "state"))
	set := func(nqn string, nsid uint32, protected bool) {
		t.Helper()
		if err := load().SetProtected(nqn, nsid, protected); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(s *state, a1, a2, b1 bool) {
		t.Helper()
		if s.Protected("a", 1) != a1 || s.Protected("a", 2) != a2 || s.Protected("b", 1) != b1 {
			t.Errorf("protected: %v", s.data.Protected)
		}
	}
	expect(load(), false, false, false)
	set("a", 1, true)
	set("b", 1, true)
	set("a", 1, true)
	expect(load(), true, false, true)
	set("a", 2, true)
	set("a", 1, false)
	expect(load(), false, true, true)
	load().ports([]string{"listener"})
	s := load()
	expect(s, false, true, true)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.SetProtected("a", 1, true); err == nil || s.Protected("a", 1) {
		t.Errorf("written into a file in place of its directory: %v", err)
	}
	s.close()
	if err := s.SetProtected("a", 2, false); err == nil {
		t.Error("written after the end")
	}
}

// TestBrokenState: a file with other content is an error that names it. One that cannot be written
// is logged, and the target goes on.
func TestBrokenState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	const ports = `{"version": 1, "generation": 1, "ports": `
	for _, text := range []string{
		"", "{", "[]", `{"version": 2, "generation": 1}`, `{"version":1}`,
		ports + `[{"listener": "a", "id": 1}, {"listener": "b", "id": 1}]}`,
		ports + `[{"listener": "a", "id": 1}, {"listener": "a", "id": 2}]}`,
		ports + `[{"listener": "a", "id": 0}]}`, ports + `[{"listener": "a"`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadState(file, quiet()); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", text, err)
		}
	}
	log := new(testutil.Log)
	s := &state{file: filepath.Join(file, "below"), log: log.Logger()}
	if ids := s.ports([]string{"a", "b"}); ids["b"] != 2 ||
		!strings.Contains(log.String(), "state file cannot be written") {
		t.Errorf("port IDs %v; the log:\n%s", ids, log)
	}
}

// TestTwoTargets: a target whose state another one keeps leaves the file alone and says so.
func TestTwoTargets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	first, err := loadState(file, quiet())
	if err != nil {
		t.Fatal(err)
	}
	first.ports([]string{"a", "b"})
	log := new(testutil.Log)
	second, err := loadState(file, log.Logger())
	if err != nil || !strings.Contains(log.String(), "another target uses it") {
		t.Fatalf("%v; the log:\n%s", err, log)
	}
	for s, keeps := range map[*state]bool{first: true, second: false} {
		o, err := (&Server{
			state: s, log: quiet(), atStart: new(config.Config), opts: Options{StateFile: file},
		}).targetOptions()
		if err != nil || (o.Protection != nil) != keeps || (o.Reservations != nil) != keeps {
			t.Errorf("keeps what hosts set: %v, %v; %v", o.Protection, o.Reservations, err)
		}
	}
	second.ports([]string{"b"})
	if first.isUnsaved() || !second.isUnsaved() {
		t.Error("only the second target cannot save")
	}
	if err := errors.Join(second.close(), first.close()); err != nil {
		t.Fatal(err)
	}
	third, err := loadState(file, quiet())
	if err != nil || third.ports([]string{"b"})["b"] != 2 {
		t.Errorf("the second target has changed the file; %v", err)
	}
	third.close()
}

// TestManyPorts: listeners that come and go do not make the file grow without end.
func TestManyPorts(t *testing.T) {
	s, _ := loadState("", quiet())
	for i := range 2 * mostPorts {
		s.ports([]string{"kept", strconv.Itoa(i)})
	}
	if s.isUnsaved() {
		t.Error("nothing is to be saved, and an alert would say so for ever")
	}
	if ids := s.ports([]string{"kept"}); ids["kept"] != 1 || len(s.data.Ports) > mostPorts {
		t.Errorf("%d ports, the one that was kept is %d", len(s.data.Ports), ids["kept"])
	}
}
