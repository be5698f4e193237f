package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestLinksOfDevices: a link below /dev may lead to devices elsewhere there, and to nothing else.
func TestLinksOfDevices(t *testing.T) {
	dir := testutil.Value(os.MkdirTemp("/dev/shm", "nvmf-target-"))(t)
	defer os.RemoveAll(dir)
	for end, want := range map[string]bool{
		"/dev/null": true, "/dev/null/x": false, "/dev/shm": false, "/etc/passwd": false,
		"/x": false, dir: true,
	} {
		link := filepath.Join(dir, "link")
		testutil.Must(t, os.Symlink(end, link))
		testutil.Equal(t, leadsTo(link, []string{dir}), want, "a link to %s", end)
		testutil.Must(t, os.Remove(link))
	}
}

// TestManagedIsNoVolume: no host can be given the files from which the target reads its
// configuration.
func TestManagedIsNoVolume(t *testing.T) {
	o := newOrchestrated(t)
	o.managed = filepath.Join(o.volumes, "managed")
	o.write("")
	testutil.Value(o.client.Reload(t.Context()))(o.t)
	o.put(control.Object{Subsystem: testNQN}, `{"allow_any_host":true}`)
	for path, want := range map[string]string{
		config.Managed{NQN: testNQN}.File(o.managed): "is in the managed directory",
		filepath.Join(o.managed, "x", "y.yaml"):      "is in the managed directory",
		o.managed + "2":                              "",
	} {
		_, err := o.client.Put(t.Context(), control.Object{Subsystem: testNQN, NSID: 1},
			json.RawMessage(fmt.Sprintf(`{"backend":"file","path":%q,"size":"1MiB"}`, path)))
		if got := fmt.Sprint(err); err == nil != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
