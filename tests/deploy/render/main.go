// Renders a Helm chart as `helm template` does, with the template engine and the functions that Helm uses.
//
//	render CHART RELEASE < VALUES     (VALUES as JSON, merged into the chart's own)
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type object = map[string]interface{}

func read(path string) object {
	content, err := os.ReadFile(path)
	check(err)
	values := object{}
	check(yaml.Unmarshal(content, &values))
	return values
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func merge(base, over object) object {
	for name, value := range over {
		inner, isObject := value.(object)
		if known, ok := base[name].(object); ok && isObject {
			base[name] = merge(known, inner)
		} else {
			base[name] = value
		}
	}
	return base
}

func main() {
	chart, release := os.Args[1], os.Args[2]
	given := object{}
	check(json.NewDecoder(os.Stdin).Decode(&given))
	// Helm gives templates the chart's fields with a capital first letter.
	about := read(filepath.Join(chart, "Chart.yaml"))
	context := object{
		"Values":  merge(read(filepath.Join(chart, "values.yaml")), given),
		"Release": object{"Name": release, "Namespace": "default", "Service": "Helm"},
		"Chart":   object{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
	}
	all := template.New("").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		out := bytes.Buffer{}
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		out, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(out), "\n"), err
	}
	functions["fail"] = func(text string) (string, error) { return "", errors.New(text) }
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		check(err)
		template.Must(all.New(filepath.Base(path)).Parse(string(content)))
	}
	rendered := object{}
	for _, path := range paths {
		if name := filepath.Base(path); !strings.HasPrefix(name, "_") {
			out := bytes.Buffer{}
			check(all.ExecuteTemplate(&out, name, context))
			rendered[name] = out.String()
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(rendered))
}
