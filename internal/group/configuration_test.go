package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// kept is a record in memory, and an engine with it. Others are not used.
type kept struct {
	Engine
	mu      sync.Mutex
	data    []byte
	version uint64
	put     error // the error of the next Put
	changed []func()
}

func (k *kept) Get(context.Context) ([]byte, uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.data, k.version, nil
}

func (k *kept) Put(_ context.Context, data []byte, version uint64) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.put
	if k.put = nil; err == nil && version != k.version {
		err = ErrConflict
	}
	if err != nil {
		return 0, err
	}
	k.data = data
	k.version++
	for _, fn := range k.changed {
		fn()
	}
	return k.version, nil
}

func (k *kept) Watch(ctx context.Context, changed func()) error {
	k.mu.Lock()
	k.changed = append(k.changed, changed)
	k.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (k *kept) Close() {}

// member is a gateway that follows the record.
type member struct {
	*Shared
	mu    sync.Mutex
	text  string // in force
	err   error  // of a change
	tries int    // changes
}

func join(t *testing.T, k *kept, name, applied string) *member {
	m := &member{}
	m.Shared = Share(name, func() (Engine, error) { return k, nil }, applied,
		func(v *Version) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.tries++
			if m.err == nil {
				m.text = v.Text
			}
			return m.err
		}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { m.Stop(context.Background()) })
	return m
}

func (m *member) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// want waits until a version is in force, with this problem.
func (m *member) want(t *testing.T, version uint64, text, problem string) {
	t.Helper()
	testutil.Until(t, fmt.Sprintf("version %d, %s", version, problem), func() bool {
		applied, now := m.State()
		m.mu.Lock()
		defer m.mu.Unlock()
		return applied == version && m.text == text && (now == nil) == (problem == "") &&
			strings.Contains(fmt.Sprint(now), problem)
	})
}

// TestShared: all gateways follow a version that one stores, and one that starts later as well. Of
// two changes of the same version one fails. A version that a gateway cannot apply leaves the last
// one in force there, with the reason.
func TestShared(t *testing.T) {
	ctx := testutil.Context(t)
	k := new(kept)
	a, b := join(t, k, "a", ""), join(t, k, "b", "")
	testutil.Equal(t, testutil.Value(a.Put(ctx, "one", 0, 0))(t), 1, "the first version")
	a.want(t, 1, "one", "")
	b.want(t, 1, "one", "")
	join(t, k, "c", "").want(t, 1, "one", "")
	join(t, k, "d", "1").want(t, 1, "one", "") // its own settings may have changed

	testutil.Must(t, testutil.Err(b.Put(ctx, "two", 1, 0)))
	a.want(t, 2, "two", "")
	err := testutil.Err(a.Put(ctx, "three", 1, 0))
	testutil.Is(t, err, ErrConflict, "")
	testutil.Fails(t, err, `version 2 was stored by gateway "b" since version 1`, "")
	k.put = ErrConflict // of another one in the same moment
	testutil.Is(t, testutil.Err(a.Put(ctx, "three", 0, 0)), ErrConflict, "")
	testutil.Fails(t, testutil.Err(a.Put(ctx, strings.Repeat("x", MaxText+1), 0, 0)),
		"has 49153 bytes, more than 49152", "")
	a.want(t, 2, "two", "")

	b.fail(errors.New("no such image"))
	testutil.Must(t, testutil.Err(a.Put(ctx, "three", 2, 0)))
	b.want(t, 2, "two", "version 3 of the configuration of the group cannot be applied: no such "+
		"image")
	for range 20 {
		_ = b.Look(ctx)
	}
	b.mu.Lock()
	testutil.True(t, b.tries < 10, "%d tries, of 2 versions, one of which fails", b.tries)
	b.mu.Unlock()
	a.fail(errors.New("no"))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_ = b.Look(ended)
	_, problem := b.State()
	testutil.Fails(t, problem, "no such image", "after another look that was given up")
	number, err := a.Put(ctx, "four", 0, 0)
	testutil.True(t, number == 4 && err != nil, "stored, but not applied: %d, %v", number, err)
	a.fail(nil)
	b.fail(nil)
	testutil.Equal(t, testutil.Value(a.Put(ctx, "three", 4, 3))(t), 5, "a version that is repeated")
	a.want(t, 5, "three", "")
	b.want(t, 5, "three", "")
	list := testutil.Value(a.Versions(ctx))(t)
	testutil.MustEqual(t, len(list), 5, "versions")
	testutil.Equal(t, fmt.Sprintln(list[0].Of, list[0].Gateway, list[4].Text), "3 a one\n", "")

	silent := make(chan struct{})
	s := Share("d", func() (Engine, error) { <-silent; return nil, ErrLost }, "5", nil,
		slog.New(slog.DiscardHandler))
	testutil.Until(t, "it connects", func() bool { return len(s.using) > 0 })
	testutil.Is(t, testutil.Err(s.Versions(ended)), ErrUnread, "of a storage that is silent")
	close(silent)
	s.Stop(ctx)
}

// TestSharedRecords: a record that cannot be read, or is older, changes nothing. Nothing is stored
// over one that cannot be read; another version replaces one that is older.
func TestSharedRecords(t *testing.T) {
	ctx := testutil.Context(t)
	k := new(kept)
	a := join(t, k, "a", "")
	newest := uint64(MaxVersions + 5)
	for range newest {
		testutil.Must(t, testutil.Err(a.Put(ctx, "text", 0, 0)))
	}
	testutil.Equal(t, len(testutil.Value(a.Versions(ctx))(t)), MaxVersions, "versions")
	good, long := string(k.data), strings.Repeat("x", MaxText)
	record := func(list ...Version) string { return string(encode(list)) }
	for _, tc := range []struct{ want, data string }{
		{"is damaged", "x" + good},
		{"checksum", good[:len(good)-2] + "x\n"},
		{"is damaged", good[:len(good)/2]},
		{"checksum", "x"},
		{"not in order", record(Version{Format: 1, Number: 1}, Version{Format: 1, Number: 2})},
		{"format 2", "{\"format\":2}\n12345678\n"},
		{"more than 49152", record(Version{Format: 1, Number: newest + 1, Text: long + "x"})},
		{"has 10485760 bytes, more than 1048576", strings.Repeat("x", 10<<20)},
		{"has lost version 105", ""},
		{"has lost version 106", record(Version{Format: 1, Number: 7})},
		{"version 107 of the configuration of the group was lost", record(Version{
			Format: 1, Number: 107, Text: "another",
		})},
	} {
		testutil.Must(t, testutil.Err(k.Put(ctx, []byte(tc.data), k.version)))
		a.want(t, newest, "text", tc.want)
		number, err := a.Put(ctx, "text", 0, 0)
		if !strings.Contains(tc.want, "lost") {
			testutil.Fails(t, err, tc.want, "")
			continue
		}
		newest++
		testutil.Equal(t, number, newest, "%s: %v", tc.want, err)
		a.want(t, newest, "text", "")
	}
	lost := Version{Number: newest, Text: "lost"}
	join(t, k, "b", lost.ID()).want(t, newest, "", "was lost")
	var many []Version
	for i := range uint64(30) {
		many = append(many, Version{Format: versionFormat, Number: 30 - i, Text: long})
	}
	testutil.Equal(t, len(testutil.Value(versions(encode(many)))(t)), 21, "large versions")
}

// TestNumber: each gateway has a number of its own, which stays. A damaged record gives none.
func TestNumber(t *testing.T) {
	ctx := testutil.Context(t)
	k := new(kept)
	number := func(name string) int { return testutil.Value(Number(ctx, k, name))(t) }
	testutil.Equal(t, fmt.Sprint(number("a"), number("b"), number("a")), "0 1 0", "numbers")
	k.put = ErrConflict // another gateway was faster
	testutil.Equal(t, number("c"), 2, "the number after a conflict")
	k.put = ErrLost
	testutil.Is(t, testutil.Err(Number(ctx, k, "d")), ErrLost, "")
	good := string(k.data)
	record := func(n map[string]int) string {
		return string((&numbers{Format: 1, Numbers: n}).bytes())
	}
	for data, want := range map[string]string{
		"":                                    "JSON",
		good[:len(good)-3]:                    "checksum",
		good + " ":                            "checksum",
		`{"format": 2}`:                       "format is 2",
		`{"format": 1}`:                       "checksum",
		record(map[string]int{"a": 64}):       "64 is not possible",
		record(map[string]int{"a": -1}):       "-1 is not possible",
		record(map[string]int{"a": 1, "": 1}): "1 is not possible, or appears twice",
		strings.Repeat(" ", 2*MaxRecord):      "JSON",
	} {
		k.data = []byte(data)
		testutil.Fails(t, testutil.Err(Number(ctx, k, "a")), want, "%.40q", data)
	}
	k.data, k.version = nil, 0
	for i := range MaxNumbers {
		testutil.Equal(t, number(fmt.Sprint(i)), i, "the next number")
	}
	testutil.Fails(t, testutil.Err(Number(ctx, k, "a")), "64 other names", "")
}
