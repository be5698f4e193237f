package web

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nvmf-target/nvmf-target/internal/bench"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// charts counts the charts with a line. It is in color, which the grid and texts are not.
const charts = `[...document.querySelectorAll('canvas')].filter(c => {
	const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
	return d.filter((v, i) => i % 4 === 0 && Math.abs(v - d[i + 2]) > 40).length > 50;
}).length`

// TestReport: the page of a report of bench draws its charts, also of few commands, and none if the
// target was not reached.
func TestReport(t *testing.T) {
	r := testutil.Value(bench.ReadReport("../../internal/bench/testdata/report.json"))(t)
	name := filepath.Join(t.TempDir(), "report.html")
	point := bench.Point{Second: 1, IOPS: 1, P50: 9, P99: 9, Max: 9}
	r.Runs[0].Series = []bench.Point{point, {Second: 2}, {Second: 3}, point}
	r.Runs[0].Series[3].Second = 4
	b := newBrowser(t)
	for _, want := range []int{5, 0} {
		f := testutil.Value(os.Create(name))(t)
		testutil.Must(t, r.WriteHTML(f))
		testutil.Must(t, f.Close())
		run(b, chromedp.Navigate("file://"+name))
		testutil.Equal(t, eval[int](b, charts), want, "charts")
		r.Runs = nil
	}
	b.clean()
}
