package crash

import (
	"encoding/gob"
	"os"
	"strconv"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// env returns an environment variable set by the scenario that runs the test.
func env(t *testing.T, name string) string {
	t.Helper()
	if os.Getenv("CRASH_JOURNAL") == "" {
		t.Skip("needs a disk below dm-log-writes, which tests/lab/scenarios/powerloss.sh creates " +
			"and names in CRASH_JOURNAL and other variables")
	}
	v := os.Getenv(name)
	testutil.MustTrue(t, v != "", "%v", name+" is not set")
	return v
}

func envInt(t *testing.T, name string) int {
	t.Helper()
	n, err := strconv.Atoi(env(t, name))
	testutil.MustTrue(t, err == nil, "%v %v", name, err)
	return n
}

// TestWrite runs a Writer on the namespace CRASH_DEV. Its disk is the device CRASH_DM of
// dm-log-writes. The test writes the file CRASH_JOURNAL.
func TestWrite(t *testing.T) {
	dev := env(t, "CRASH_DEV")
	mark, done, err := Marker(env(t, "CRASH_DM"))
	testutil.Must(t, err)
	w := testutil.Value(NewWriter(dev, 1024, uint64(envInt(t, "CRASH_SEED")), mark))(t)
	j := testutil.Value(w.Run(envInt(t, "CRASH_OPS")))(t)
	testutil.Must(t, done())
	f := testutil.Value(os.Create(env(t, "CRASH_JOURNAL")))(t)
	testutil.Must(t, gob.NewEncoder(f).Encode(j))
	testutil.Must(t, f.Close())
}

// TestReplay makes CRASH_COUNT crashes of the log that TestWrite has left on the device CRASH_LOG,
// of a disk of CRASH_SIZE bytes, and checks them with CRASH_JOURNAL. With CRASH_FS, the type of the
// file system on the disk, the namespace is the file 1.img in it, and CRASH_SCRATCH a disk of the
// same size.
func TestReplay(t *testing.T) {
	name, dev, size := env(t, "CRASH_JOURNAL"), env(t, "CRASH_LOG"), envInt(t, "CRASH_SIZE")
	f := testutil.Value(os.Open(name))(t)
	defer f.Close()
	var j Journal
	testutil.Must(t, gob.NewDecoder(f).Decode(&j))
	disk := testutil.Value(os.Open(dev))(t)
	defer disk.Close()
	log := testutil.Value(readLog(disk))(t)
	read := Reader(func(image []byte) ([]byte, error) { return image, nil })
	if fs := os.Getenv("CRASH_FS"); fs != "" {
		read = Mounted(fs, env(t, "CRASH_SCRATCH"), t.TempDir(), "1.img")
	}
	rep, err := Replay(log, &j, make([]byte, size), read, envInt(t, "CRASH_COUNT"), j.Seed)
	t.Logf("%d entries, %d marks, %d places: %+v", len(log), len(j.Marks), len(cuts(log)), rep)
	testutil.Must(t, err)
	testutil.MustTrue(t, rep.Crashes != 0 && rep.Promised != 0 && rep.Dropped != 0 && rep.Kept != 0,
		"the crashes show nothing")
}
