// Package observed has one type for each fact that a target shows about itself. The code that knows
// a fact fills it in. The control interface, the metrics, the page, doctor and the commands read
// it. The JSON is that of the control interface. The comments appear in openapi.json.
package observed
