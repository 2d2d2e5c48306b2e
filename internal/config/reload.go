package config

import "reflect"

// NeedRestart returns the paths of the fields that differ between two configurations and cannot change while the
// daemon runs, in the order of the fields.
func NeedRestart(running, next Config) []string {
	return differing("", reflect.ValueOf(running), reflect.ValueOf(next))
}

// Reloaded returns the running configuration with those fields of the next one that can change while the daemon runs.
func Reloaded(running, next Config) Config {
	take(reflect.ValueOf(&running).Elem(), reflect.ValueOf(next))
	running.policy = next.policy
	return running
}

func take(into, from reflect.Value) {
	for f, v := range into.Fields() {
		switch {
		case f.Tag.Get("reload") != "":
			v.Set(from.FieldByIndex(f.Index))
		case f.IsExported() && f.Type.Kind() == reflect.Struct:
			take(v, from.FieldByIndex(f.Index))
		}
	}
}

func differing(prefix string, a, b reflect.Value) (paths []string) {
	for f, v := range a.Fields() {
		name := f.Tag.Get("json")
		if name == "" || f.Tag.Get("reload") != "" {
			continue
		}
		w := b.FieldByIndex(f.Index)
		if f.Type.Kind() == reflect.Struct {
			paths = append(paths, differing(prefix+name+".", v, w)...)
			continue
		}
		empty := v.Kind() == reflect.Slice && v.Len() == 0 && w.Len() == 0 // nil or not nil
		if !empty && !reflect.DeepEqual(v.Interface(), w.Interface()) {
			paths = append(paths, prefix+name)
		}
	}
	return paths
}
