package app

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestManagedIsNoVolume: no host can be given the files from which the target reads its
// configuration.
func TestManagedIsNoVolume(t *testing.T) {
	o := newOrchestrated(t)
	o.managed = filepath.Join(o.volumes, "managed")
	o.write("")
	testutil.Value(o.client.Reload(t.Context()))(o.t)
	o.put(control.Object{Subsystem: testNQN}, `{"allow_any_host":true}`)
	for path, want := range map[string]string{
		config.Managed{Subsystem: testNQN}.File(o.managed): "is in the managed directory",
		filepath.Join(o.managed, "x", "y.yaml"):            "is in the managed directory",
		o.managed + "2":                                    "",
	} {
		_, err := o.client.Put(t.Context(), control.Object{Subsystem: testNQN, NSID: 1},
			json.RawMessage(fmt.Sprintf(`{"backend":"file","path":%q,"size":"1MiB"}`, path)))
		if got := fmt.Sprint(err); err == nil != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
