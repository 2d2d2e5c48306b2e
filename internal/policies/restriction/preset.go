package restriction

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed presets/*.yaml
var presets embed.FS

// Presets returns the names of the policies that come with pullgate, in order.
func Presets() []string {
	entries, err := presets.ReadDir("presets")
	if err != nil {
		panic("restriction: " + err.Error()) // it is compiled in
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Preset returns the file of a policy that comes with pullgate, to start from.
func Preset(name string) ([]byte, error) {
	data, err := presets.ReadFile("presets/" + name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("no preset %q; there are %s", name, strings.Join(Presets(), ", "))
	}
	return data, nil
}
