package live

import (
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// manage moves random namespaces of a configuration file to the managed directory. The place of
// their description makes no difference to the target.
func (p *place) manage(text []byte) []byte {
	p.t.Helper()
	p.managed++
	dir := filepath.Join(p.dir, "managed")
	p.must(os.RemoveAll(dir))
	p.must(os.Mkdir(dir, 0o700))
	p.must(os.WriteFile(filepath.Join(dir, ".nvmf-target"), nil, 0o600)) // marks it as ours
	var file map[string]any
	p.must(yaml.Unmarshal(text, &file))
	file["managed"] = dir
	for _, s := range file["subsystems"].([]any) {
		sub := s.(map[string]any)
		var rest []any
		for _, n := range sub["namespaces"].([]any) {
			nsid := n.(map[string]any)["nsid"].(int)
			if (nsid+p.managed)%3 != 0 {
				rest = append(rest, n)
				continue
			}
			m := config.Managed{Subsystem: sub["nqn"].(string), NSID: uint32(nsid)}
			content := testutil.Value(yaml.Marshal(map[string]any{"subsystems": []any{
				map[string]any{"nqn": m.Subsystem, "namespaces": []any{n}},
			}}))(p.t)
			p.must(os.MkdirAll(m.Dir(dir), 0o700))
			p.must(os.WriteFile(m.File(dir), content, 0o600))
		}
		if delete(sub, "namespaces"); rest != nil {
			sub["namespaces"] = rest
		}
	}
	out := testutil.Value(yaml.Marshal(file))(p.t)
	return out
}
