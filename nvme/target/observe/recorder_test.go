package observe

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// loopNow is a loop that runs posts at once.
type loopNow struct{ fabric.Loop }

func (loopNow) Post(fn func()) { fn() }
func (loopNow) Clock() int64   { return 0 }

type idleQueue struct{ Queue }

func (idleQueue) Loop() fabric.Loop                  { return loopNow{} }
func (idleQueue) Describe() observed.TraceQueue      { return observed.TraceQueue{ID: 1} }
func (idleQueue) Open(func(*fabric.Request, string)) {}

// TestTracerForgets: a Tracer knows no queues that have ended.
func TestTracerForgets(t *testing.T) {
	r := &Recorder{Queue: idleQueue{}}
	r.Start()
	queues := []*Recorder{r}
	tr := NewTracer(observed.TraceQuery{Queue: -1}, func() []Reactor {
		return []Reactor{{loopNow{}, func(visit func(*Recorder), done func()) {
			for _, r := range queues {
				visit(r)
			}
			done()
		}}}
	})
	seen := 0
	read := func() {
		testutil.Must(t, tr.Read(t.Context(), func(observed.TraceQueue) error {
			seen++
			return nil
		}))
	}
	read()
	testutil.True(t, seen == 1 && len(tr.read) == 1, "%d seen, %d known", seen, len(tr.read))
	queues = nil
	read()
	testutil.Equal(t, len(tr.read), 0, "queues that have ended are known")
}
