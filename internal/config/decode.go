package config

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// decode reads one YAML document into a configuration. Fields that are absent or null keep their values; those of the
// header, apiVersion and kind, lose them. A document without a field is an error: it is probably a file that was not
// written completely. The errors in errs are about single fields, and all other fields have been read. If err is set,
// the caller cannot use any part of the document.
func decode[C any](data []byte, c *C, header ...*string) (errs []error, err error) {
	if len(data) > maxSize {
		return nil, fmt.Errorf("more than %d bytes", maxSize)
	}
	empty := false
	d := strictyaml.Decoder{
		Want: map[reflect.Type]string{reflect.TypeFor[Duration](): "a duration, as in 24h or 0s"},
		Rewrites: map[reflect.Type]func(*strictyaml.Mapping){reflect.TypeFor[C](): func(m *strictyaml.Mapping) {
			empty = len(m.Fields) == 0
			for _, field := range header {
				*field = ""
			}
		}},
	}
	errs, err = d.Decode(data, c)
	if err == nil && empty {
		err = errors.New("apiVersion: Required value: the file has no field")
	}
	return errs, err
}
