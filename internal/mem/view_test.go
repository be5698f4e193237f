package mem

import (
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestView(t *testing.T) {
	r := testutil.Value(Map("test view", 4096))(t)
	defer func() { _ = r.Unmap() }()
	words := View[atomic.Uint64](r.Bytes()[8:29])
	testutil.MustEqual(t, len(words), 2, "words")
	words[1].Store(1<<56 | 1)
	if b := r.Bytes(); b[16] != 1 || b[23] != 1 || b[15] != 0 || b[24] != 0 {
		t.Errorf("the word is not where it should be: %x", b[8:32])
	}
}
