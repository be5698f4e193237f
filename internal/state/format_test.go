package state

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

const (
	testNQN  = "nqn.2026-11.io.nvmf-target:<a>é"
	testPool = "nvme"
)

// full makes a directory with a file of each kind, for namespace 1 of testNQN.
func full(t *testing.T) *Store {
	t.Helper()
	s := opened(t, t.TempDir())
	testutil.Value(s.Ports([]string{"tcp 127.0.0.1:4420", "rdma 127.0.0.1:4420"}))(t)
	testutil.Value(s.NextGeneration())(t)
	must(t, s.Protection.SetProtected(testNQN, 1, true))
	must(t, s.Reservations.Save(testNQN, 1, someHosts(3, rand.New(rand.NewPCG(1, 1)))))
	must(t, s.Uncorrectable.Save(testNQN, 1, &marks.Kept{
		Identity: "disk", Ranges: []backend.Range{{Off: 0, End: 512}, {Off: 1024, End: 4096}},
	}))
	must(t, s.Note(Name{testNQN, 1}, testPool))
	return s
}

// TestShared: the promises of a namespace of several gateways are read as they were written, and
// only for their namespace. With reservations only they are as programs wrote them that had no
// others.
func TestShared(t *testing.T) {
	n := Name{testNQN, 1}
	for _, want := range []*Shared{
		{},
		{Protected: true},
		{Uncorrectable: mostMarks()},
		{Protected: true, Uncorrectable: mostMarks()},
	} {
		want.Reservations = someHosts(reservation.MaxRegistrants, rand.New(rand.NewPCG(1, 1)))
		want.Reservations.PTPL = want.Protected
		text := testutil.Value(EncodeShared(n, want))(t)
		got := testutil.Value(DecodeShared(n, text))(t)
		testutil.True(t, reflect.DeepEqual(got, want), "%+v, want %+v", got, want)
		_, err := DecodeShared(Name{testNQN, 2}, text)
		testutil.Fails(t, err, "namespace 1", "of another one")
		var before reservationsData
		err = decode(reservationsKind, text, &before)
		testutil.Equal(t, err == nil, !want.Protected && want.Uncorrectable == nil,
			"a program that knows only reservations: %v", err)
	}
	testutil.Fails(t, testutil.Err(DecodeShared(n, make([]byte, mostKept+1))), "large", "")
}

// decoder decodes a file of one kind, and makes a namespace forget the promise.
type decoder struct {
	kind, file string
	decode     func(text []byte) (any, error)
	forget     func(nsid uint32) error
}

func decoderOf[V any, D content[V]](k *kind[V, D], forget func(uint32) error) decoder {
	return decoder{k.dir, k.file(Name{testNQN, 1}), func(text []byte) (any, error) {
		var d D
		if err := decode(k.dir, text, &d); err != nil {
			return nil, err
		}
		v, err := d.value()
		if err == nil && k.file(d.named()) != k.file(Name{testNQN, 1}) {
			err = fmt.Errorf("it is for %v", d.named())
		}
		return []any{d, v}, err
	}, forget}
}

func (s *Store) decoders() []decoder {
	return []decoder{
		{stateKind, stateFile, func(text []byte) (any, error) {
			var d stateData
			return d, decode(stateKind, text, &d)
		}, nil},
		decoderOf(s.Protection.kind, func(nsid uint32) error {
			return s.Protection.SetProtected(testNQN, nsid, false)
		}),
		decoderOf(s.Reservations.kind, func(nsid uint32) error {
			return s.Reservations.Save(testNQN, nsid, nil)
		}),
		decoderOf(s.Uncorrectable.kind, func(nsid uint32) error {
			return s.Uncorrectable.Save(testNQN, nsid, nil)
		}),
		decoderOf(s.places.kind, func(nsid uint32) error {
			n := Name{testNQN, nsid}
			return s.places.set(n, nil, placeData{Name: n})
		}),
	}
}

func (s *Store) content(t *testing.T, file string) []byte {
	t.Helper()
	text := testutil.Value(os.ReadFile(s.at(file)))(t)
	return text
}

// TestDamage flips every bit of a file of each kind, and cuts it at every byte. No damaged file is
// accepted.
func TestDamage(t *testing.T) {
	s := full(t)
	for _, d := range s.decoders() {
		good := s.content(t, d.file)
		testutil.MustEqual(t, testutil.Err(d.decode(good)), nil, "%s", d.kind)
		for bit := range 8 * len(good) {
			bad := bytes.Clone(good)
			bad[bit/8] ^= 1 << (bit % 8)
			got, err := d.decode(bad)
			testutil.True(t, err != nil, "%s, bit %d: %+v", d.kind, bit, got)
		}
		for n := range good {
			testutil.True(t, testutil.Err(d.decode(good[:n])) != nil,
				"%s: %d bytes of %d are taken", d.kind, n, len(good))
			if _, err := d.decode(append(good[:n:n], make([]byte, len(good)-n)...)); err == nil {
				t.Errorf("%s: zeroes from byte %d on are taken", d.kind, n)
			}
		}
		for what, bad := range map[string]string{
			"twice":       string(good) + string(good),
			"white space": string(good) + "\n",
			"compact":     strings.Join(strings.Fields(string(good)), ""),
			"a key twice": strings.Replace(string(good), `"version": 2,`,
				`"version": 2, "version": 2,`, 1),
			"a key too many": strings.Replace(string(good), `"version": 2,`,
				`"version": 2, "more": 1,`, 1),
			"a key in capitals": strings.Replace(string(good), `"data"`, `"DATA"`, 1),
			"a string":          strings.Replace(string(good), `"version": 2`, `"version": "2"`, 1),
			"a later format":    strings.Replace(string(good), `"version": 2`, `"version": 3`, 1),
			"an earlier format": strings.Replace(string(good), `"version": 2`, `"version": 1`, 1),
			"no data":           `{"version": 2, "kind": "` + d.kind + `", "crc32c": "00000000"}`,
			"null":              "null", "a list": "[]",
		} {
			got, err := d.decode([]byte(bad))
			testutil.True(t, err != nil, "%s, %s: %+v", d.kind, what, got)
		}
		for _, o := range s.decoders() {
			if _, err := o.decode(good); (err == nil) != (o.kind == d.kind) {
				t.Errorf("a file of the kind %s as %s: %v", d.kind, o.kind, err)
			}
		}
	}
}

// TestDamagedFiles damages the files in a directory. A damaged file of the target is an error of
// Open, and a damaged file of a namespace costs only this namespace. It is neither changed nor
// removed, and all is well after it is moved away or restored.
func TestDamagedFiles(t *testing.T) {
	s := full(t)
	rnd := rand.New(rand.NewPCG(2, 2))
	for i, d := range s.decoders() {
		file, good := s.at(d.file), s.content(t, d.file)
		for range 4 {
			bad := bytes.Clone(good)
			if bad[rnd.IntN(len(bad))] ^= 1 << rnd.IntN(8); rnd.IntN(2) == 0 {
				bad = bad[:rnd.IntN(len(bad))]
			}
			must(t, os.WriteFile(file, bad, 0o600))
			must(t, s.Close())
			again, err := Open(s.path)
			if i == 0 {
				testutil.MustTrue(t, err != nil && strings.Contains(err.Error(), file), "%s: %v",
					d.kind, err)
				must(t, os.WriteFile(file, good, 0o600))
				s = opened(t, s.path)
				continue
			}
			must(t, err)
			s = again
			err = s.Check(Name{testNQN, 1}, testPool)
			testutil.MustTrue(t, err != nil && strings.Contains(err.Error(), file) &&
				strings.Contains(err.Error(), "move it away"), "%s: %v", d.kind, err)
			must(t, s.Check(Name{testNQN, 2}, ""))
			forget := s.decoders()[i].forget
			testutil.MustTrue(t, forget(1) != nil && bytes.Equal(s.content(t, d.file), bad),
				"%s: a damaged file was replaced", d.kind)
			must(t, forget(2))
			if rnd.IntN(2) == 0 {
				must(t, os.Remove(file))
				must(t, s.Check(Name{testNQN, 1}, testPool))
				must(t, os.WriteFile(file, good, 0o600))
				s = reopened(t, s)
			} else {
				must(t, os.WriteFile(file, good, 0o600))
			}
			must(t, s.Check(Name{testNQN, 1}, testPool))
			testutil.MustTrue(t, s.Protection.Protected(testNQN, 1) && s.Reservations.Load(testNQN,
				1) != nil && s.Uncorrectable.Load(testNQN, 1) != nil, "a restored file is not used")
		}
	}
	must(t, s.Close())
}

// TestAstray: a file in the place of another one costs both namespaces, unless the other namespace
// has its file.
func TestAstray(t *testing.T) {
	s := full(t)
	r := s.Reservations.kind
	one, two := s.at(r.file(Name{testNQN, 1})), s.at(r.file(Name{testNQN, 2}))
	must(t, os.Rename(one, two))
	s = reopened(t, s)
	for nsid := uint32(1); nsid <= 2; nsid++ {
		testutil.Fails(t, s.Check(Name{testNQN, nsid}, testPool), two, "namespace %d", nsid)
	}
	must(t, os.Rename(two, one))
	for nsid := uint32(1); nsid <= 2; nsid++ {
		must(t, s.Check(Name{testNQN, nsid}, testPool))
	}
	testutil.True(t, s.Reservations.Load(testNQN, 1) != nil && s.Reservations.Load(testNQN,
		2) == nil, "not what the file says")
	must(t, os.Link(one, two))
	s = reopened(t, s)
	must(t, s.Check(Name{testNQN, 1}, testPool))
	testutil.True(t, s.Check(Name{testNQN, 2}, testPool) != nil, "a copy is taken for another's")
	must(t, os.Remove(two))
	must(t, s.Check(Name{testNQN, 2}, testPool))
	must(t, os.Rename(one, two))
	s = reopened(t, s)
	must(t, os.Remove(two))
	must(t, s.Check(Name{testNQN, 1}, testPool))
	must(t, s.Close())
}

// TestPlaces: promises in an object of a pool are not looked for elsewhere, until the file with the
// pool is moved away. The pool can be changed back as well.
func TestPlaces(t *testing.T) {
	s := opened(t, t.TempDir())
	testutil.Value(s.NextGeneration())(t) // writes the file of the target
	n := Name{testNQN, 1}
	must(t, s.Check(n, ""))
	must(t, s.Note(n, testPool))
	must(t, s.Note(n, "another")) // without effect
	s = reopened(t, s)
	file := s.at(s.places.file(n))
	for _, other := range []string{"", "another"} {
		for range 2 {
			testutil.Fails(t, s.Check(n, other), "object "+n.Object()+" of pool nvme ("+file, "")
		}
		s.Restore(func(file string, err error) { t.Errorf("%s was restored: %v", file, err) })
	}
	must(t, s.Check(n, testPool))
	must(t, os.Remove(file))
	s.Restore(func(_ string, err error) { must(t, err) })
	testutil.Fails(t, s.Check(n, ""), "of pool nvme", "a file that was restored")
	must(t, os.Remove(file))
	must(t, s.Check(n, ""))
	must(t, s.Check(n, "another"))
	must(t, s.Note(n, "another"))
	must(t, s.Check(n, "another"))
	must(t, s.Close())
}

// TestFound: an object that has been there is missed, also after a restart, until the file that
// says so is moved away or the object is there again.
func TestFound(t *testing.T) {
	s := opened(t, t.TempDir())
	testutil.Value(s.NextGeneration())(t) // writes the file of the target
	n := Name{testNQN, 1}
	must(t, s.Note(n, testPool))
	must(t, s.Found(n, testPool, false))
	must(t, s.Found(n, testPool, true))
	must(t, s.Note(n, testPool))
	s = reopened(t, s)
	file := s.at(s.places.file(n))
	missing := func() {
		t.Helper()
		for range 2 {
			testutil.Fails(t, s.Found(n, testPool, false), "although it existed ("+file, "")
		}
	}
	missing()
	must(t, s.Check(n, testPool))
	must(t, s.Found(n, testPool, true))
	missing()
	must(t, os.Remove(file))
	s.Restore(func(file string, err error) { t.Errorf("%s was restored: %v", file, err) })
	must(t, s.Found(n, testPool, false))
	must(t, s.Close())
}

// TestFirstFormat: files of snapshots, without checksums, are refused and kept, and the error names
// every promise that ends without the file.
func TestFirstFormat(t *testing.T) {
	s := full(t)
	const known = "it has format 1, and this program knows format 2. Restore it, or move it " +
		"away: then "
	for i, without := range []string{
		"hosts may see other port IDs, and can write to namespaces that they have write protected",
		s.Protection.without, s.Reservations.without, s.Uncorrectable.without, withoutPlace,
	} {
		file := s.at(s.decoders()[i].file)
		good := testutil.Value(os.ReadFile(file))(t)
		first := []byte(`{"version": 1, "protected": [{"subsystem": "b", "nsid": 7}]}`)
		must(t, os.WriteFile(file, first, 0o600))
		must(t, s.Close())
		again, err := Open(s.path)
		if i > 0 {
			must(t, err)
			err = again.Check(Name{testNQN, 1}, testPool)
			must(t, again.Close())
		}
		testutil.Fails(t, err, known+without, "%s", file)
		kept := testutil.Value(os.ReadFile(file))(t)
		testutil.True(t, bytes.Equal(kept, first), "%s: %s", file, kept)
		must(t, os.WriteFile(file, good, 0o600))
		s = opened(t, s.path)
	}
	must(t, s.Close())
}
