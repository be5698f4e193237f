package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/nvmf-target/nvmf-target/internal/web/static"
)

//go:embed report.html.tmpl
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"duration": duration, "number": number,
	"mib":   func(v float64) string { return fmt.Sprintf("%.1f", v/(1<<20)) },
	"kinds": (*Group).named,
	"cpu":   (*Run).cpu, "late": (*Group).late,
	"script": func() (template.JS, error) {
		text, err := static.Files.ReadFile(static.UPlot)
		return template.JS(text), err
	},
	"style": func() (template.CSS, error) {
		text, err := static.Files.ReadFile(static.UPlotStyle)
		return template.CSS(text), err
	},
}).Parse(page))

// WriteHTML writes a report as a self-contained page. Its scripts draw charts of its JSON.
func (r *Report) WriteHTML(out io.Writer) error { return pageTemplate.Execute(out, r) }

// named are the figures of one kind of command.
type named struct {
	Kind string
	*Figures
}

func (g *Group) named() (list []named) {
	for k, f := range g.kinds() {
		if f != nil {
			list = append(list, named{kindNames[k], f})
		}
	}
	return list
}
