import tomllib
d=tomllib.load(open('pyproject.toml','rb'))['project']
out=['[console_scripts]']+[f'{k} = {v}' for k,v in d.get('scripts',{}).items()]
for g,e in d['entry-points'].items():
    out+=['',f'[{g}]']+[f'{k} = {v}' for k,v in e.items()]
open('fedbench_toolkit-0.1.0.dist-info/entry_points.txt','w').write('\n'.join(out)+'\n')
