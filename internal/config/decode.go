package config

import (
	"reflect"

	"github.com/pullgate/pullgate/internal/strictyaml"
)

// decode reads one YAML document into a configuration. Fields that are absent or null keep their values; apiVersion and kind lose
// them unless the document is empty. The errors in errs are about single fields, and all other fields have been read. If err is
// set, the caller cannot use any part of the document.
func decode(data []byte, c *Config) (errs []error, err error) {
	d := strictyaml.Decoder{
		Want: map[reflect.Type]string{reflect.TypeFor[Duration](): "a duration, as in 24h or 0s"},
		Rewrites: map[reflect.Type]func(*strictyaml.Mapping){reflect.TypeFor[Config](): func(m *strictyaml.Mapping) {
			if len(m.Fields) > 0 {
				c.APIVersion, c.Kind = "", ""
			}
		}},
	}
	return d.Decode(data, c)
}
