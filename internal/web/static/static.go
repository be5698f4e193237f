// Package static has the files of the page for browsers. Reports of "nvmf-target bench" are drawn
// with uPlot as well.
package static

import "embed"

// The files of uPlot, which draws charts.
const (
	UPlot        = "uPlot-1.6.32.min.js"
	UPlotStyle   = "uPlot-1.6.32.min.css"
	UPlotLicense = "uPlot-LICENSE" // is part of every copy
)

// Files are the files.
//
//go:embed *.html *.js *.css *.svg uPlot-LICENSE
var Files embed.FS
